// Test of the reference job under a plan that the search has found.
#include <doctest/doctest.h>

#include "engine/spec/parse.h"
#include "tests/equivalence/harness.h"

using namespace trainctl;

TEST_CASE("the reference job as recursive_programming plans it in 2 stages has the losses of one rank") {
  const auto reference = [](const std::string& parallel, int ranks) {
    return plan_job(load_job(std::string(TRAINCTL_SOURCE_DIR) + "/configs/mnist_mlp.yaml",
                             {"train={epochs: 1}", "launch.ranks=" + std::to_string(ranks), "parallel=" + parallel}));
  };
  const RunResult one = run_job(reference("{mode: stand_alone}", 1));
  PlannedJob found = reference("{mode: auto_parallel, search: recursive_programming, stages: 2}", 8);
  REQUIRE(found.search);
  CHECK(found.plan.ranks == 8);
  CHECK(found.plan.num_stages == 2);
  const RunResult run = run_job(std::move(found));
  REQUIRE(run.losses.size() == one.losses.size());
  REQUIRE(!run.losses.empty());
  for (size_t step = 0; step < run.losses.size(); ++step)
    CHECK(run.losses[step] == doctest::Approx(one.losses[step]).epsilon(1e-4));
}
