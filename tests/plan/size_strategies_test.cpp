// parallel.data, tensor and context as cuts of layers.
#include "engine/plan/axes/size_strategies.h"

#include <doctest/doctest.h>

#include "tests/jobs/jobs.h"
#include "tests/plan/planned.h"

using namespace trainctl;

namespace {

Planned sized(const std::string& job, std::vector<std::string> overrides) {
  overrides.push_back("parallel.mode=semi_auto_parallel");
  return planned(job_text(job), overrides);
}

}  // namespace

TEST_CASE("context cuts rows, data the batch, and tensor heads, hidden features and classes") {
  const Planned p = sized("llama", {"parallel.context=2", "parallel.tensor=3", "launch.ranks=12"});
  CHECK(p.cuts("table") == "[[2, 2], [1, 1]]");
  CHECK(p.cuts("h.0.norm1") == "[[2, 2, 1], [1]]");
  CHECK(p.cuts("h.1.qkv") == "[[2, 2, 1], [3, 1]]");
  CHECK(p.cuts("h.1.turn") == "[[2, 2, 3]]");
  CHECK(p.cuts("h.1.attn") == "[[2, 2, 3]]");
  CHECK(p.cuts("h.1.proj") == "[[2, 2, 3], [1, 3]]");
  CHECK(p.cuts("h.0.sum1") == "[[2, 2, 1], [2, 2, 1]]");
  CHECK(p.cuts("h.0.gate") == "[[2, 2, 1], [3, 1]]");
  CHECK(p.cuts("h.0.gated") == "[[2, 2, 3], [2, 2, 3]]");
  CHECK(p.cuts("h.0.down") == "[[2, 2, 3], [1, 3]]");
  CHECK(p.cuts("head") == "[[2, 2, 1], [3, 1]]");
  CHECK(p.cuts("loss") == "[[2, 2, 3], [2, 2]]");
  CHECK(broken_rule(p) == "");
  CHECK(p.layer("h.0.up").reason.starts_with("data 2 x tensor 3 x context 2"));
}

TEST_CASE("a table that the head shares is cut with the classes") {
  const Planned p = sized("gpt", {"parallel.context=2", "parallel.tensor=2", "launch.ranks=4"});
  CHECK(p.cuts("wte") == "[[1, 2], [2, 1]]");
  CHECK(p.cuts("head") == "[[1, 2, 1], [2, 1]]");
  CHECK(p.variable("wte.weight").layout.dims[0] == Axes{1});
}

TEST_CASE("ulysses cuts heads in attention and rows elsewhere") {
  const Planned p =
      sized("llama", {"parallel.context=2", "parallel.tensor=3", "launch.ranks=6", "parallel.context_method=ulysses"});
  CHECK(p.cuts("h.0.attn") == "[[1, 1, 6]]");
  CHECK(p.cuts("h.0.turn") == "[[1, 2, 3]]");
  CHECK(p.plan.context_method == ContextMethod::ulysses);
}

TEST_CASE("a layer that has a strategy keeps it") {
  const Planned p =
      sized("llama", {"parallel.context=2", "launch.ranks=2", "parallel.strategies={h.0.gate: [[2, 1, 1]]}"});
  CHECK(p.cuts("h.0.gate") == "[[2, 1, 1], [1, 1]]");
  CHECK(p.cuts("h.1.gate") == "[[1, 2, 1], [1, 1]]");
}

TEST_CASE("ranks that share heads are neighbours, then those that share rows") {
  ParallelSpec parallel;
  parallel.tensor = 2, parallel.context = 6;
  const SizeAxes axes = size_axes(Mesh(24), parallel);  // 3x2x2x2
  CHECK(axes.tensor == Axes{3});
  CHECK(axes.context == Axes{0, 2});
  CHECK(axes.data == Axes{1});
}

TEST_CASE("the automatic method is the one with the lowest estimate, and the plan has a note of all") {
  const Planned p = sized("llama", {"parallel.context=2", "launch.ranks=2"});
  bool found = false;
  for (const std::string& note : p.plan.notes)
    found = found || note.starts_with("attention over 2 ranks: " + std::string(to_string(p.plan.context_method)));
  CHECK(found);
}
