// The last and the best validation of a run, from its metrics.jsonl.
#include "cli/run/launch/validation_results.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/text/base64.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

TEST_CASE("the best loss is the lowest one, and the best of any other metric the highest") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/metrics.jsonl";
  std::ofstream(path) << R"({"epoch":1,"step":1,"run_step":1,"loss":2.5}
{"kind":"validation","epoch":1,"run_step":10,"samples":8,"loss":0.5,"accuracy":0.25,"seconds":0.1}
not JSON "validation"
{"kind":"validation","epoch":2,"run_step":20,"samples":8,"loss":0.75,"accuracy":0.5,"seconds":0.1}
{"stopped_at_step":20,"reason":"enough","steps":100}
{"kind":"validation","epoch":3,"run_step":30,"samples":8,"loss":0.1,"accur)";
  const ValidationResults found = read_validations(path);
  CHECK(found.metrics == std::vector<ValidatedMetric>{{"loss", 0.75, 0.5, 10}, {"accuracy", 0.5, 0.5, 20}});
  CHECK(found.stop_reason == "enough");
  CHECK(found.planned_steps == 100);
  CHECK(validation_text(found.metrics) == "validation loss 0.7500 (best 0.5000 at step 10), accuracy 0.5000");
  CHECK(short_validation_text(found.metrics) == "accuracy 0.5000");
  CHECK(validated_metrics_of(to_json(found.metrics)) == found.metrics);
}

TEST_CASE("a run without validations has none, and a loss that is nan is not the best") {
  const Scratch scratch;
  CHECK(read_validations(scratch.path() + "/none").metrics.empty());
  CHECK(validation_text({}).empty());
  const std::string path = scratch.path() + "/metrics.jsonl";
  std::ofstream(path) << R"({"kind":"validation","epoch":1,"run_step":10,"loss":null,"not_finite":"nan"}
{"kind":"validation","epoch":2,"run_step":20,"loss":0.5}
)";
  const ValidationResults found = read_validations(path);
  REQUIRE(found.metrics.size() == 1);
  CHECK(found.metrics[0].best == 0.5);
  CHECK(found.metrics[0].best_step == 20);
}

TEST_CASE("base64 is that of RFC 4648") {
  CHECK(base64_of("") == "");
  CHECK(base64_of("f") == "Zg==");
  CHECK(base64_of("fo") == "Zm8=");
  CHECK(base64_of("foobar") == "Zm9vYmFy");
}
