// Tests that an error which many layers share is reported once.
#include "engine/base/layer_errors.h"

#include <doctest/doctest.h>

using namespace trainctl;

namespace {

Diagnostic error(int line, const std::string& message) { return {{"job.yaml", line, 1}, "network", message, "hint"}; }

}  // namespace

TEST_CASE("the same mistake in several layers is one error that names them all") {
  LayerErrors errors;
  CHECK(errors.empty());
  for (int i = 0; i < 12; ++i) errors.add(error(1, "bad"), "h." + std::to_string(i));
  const std::vector<Diagnostic> all = errors.take();
  REQUIRE(all.size() == 1);
  CHECK(all[0].message == "layer h.0: bad; and 11 more layers: h.1, h.2, h.3, ...");
  CHECK(errors.empty());
}

TEST_CASE("errors that differ in place or text stay apart, in the order in which they came") {
  LayerErrors errors;
  errors.add(error(1, "bad"), "a");
  errors.add(error(2, "bad"), "b");
  errors.add(error(1, "worse"), "c");
  errors.add(error(1, "bad"));
  errors.add(error(1, "bad"), "d");
  errors.add(error(1, "bad"), "a");
  const std::vector<Diagnostic> all = errors.take();
  REQUIRE(all.size() == 4);
  CHECK(all[0].message == "layer a: bad; and 1 more layer: d");
  CHECK(all[1].message == "layer b: bad");
  CHECK(all[2].message == "layer c: worse");
  CHECK(all[3].message == "bad");
}
