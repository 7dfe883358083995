// The reference job under plans that the search has found.
#include <doctest/doctest.h>

#include <set>

#include "engine/base/error.h"
#include "engine/spec/parse.h"
#include "tests/equivalence/harness.h"

using namespace trainctl;

namespace {

PlannedJob reference_job(const std::vector<std::string>& overrides) {
  std::vector<std::string> all = {"train={epochs: 1}"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return plan_job(load_job(std::string(TRAINCTL_SOURCE_DIR) + "/configs/mnist_mlp.yaml", all));
}

}  // namespace

TEST_CASE("the reference job as recursive_programming plans it in 2 stages has the losses of one rank") {
  const RunResult one = run_job(reference_job({"launch.ranks=1", "parallel={mode: stand_alone}"}));
  PlannedJob found = reference_job({"parallel={mode: auto_parallel, search: recursive_programming, stages: 2}"});
  REQUIRE(found.search);
  CHECK(found.plan.ranks == 8);
  CHECK(found.plan.num_stages == 2);
  const RunResult run = run_job(std::move(found));
  REQUIRE(run.losses.size() == one.losses.size());
  for (size_t step = 0; step < run.losses.size(); ++step) CHECK(run.losses[step] == doctest::Approx(one.losses[step]).epsilon(1e-4));
}

TEST_CASE("the reference job with less and less memory gets other plans until it is told what the least one needs") {
  std::set<std::string> plans;
  int64_t limit = 0;
  std::string fault;
  for (int round = 0; round < 40 && fault.empty(); ++round) {
    try {
      const PlannedJob job = reference_job({"parallel={mode: auto_parallel, stages: 2, max_memory: " + std::to_string(limit) + "}"});
      const Trial& trial = job.search->best().trial;
      if (limit > 0) CHECK(trial.memory <= limit);
      plans.insert(job.search->best().name);
      limit = trial.memory - 1;
    } catch (const SpecError& error) {
      fault = error.what();
    }
  }
  CHECK(plans.size() >= 3);
  CHECK(fault.find("no plan fits: parallel.max_memory is") != std::string::npos);
  CHECK(fault.find("the plan that needs least takes") != std::string::npos);
  MESSAGE(plans.size(), " plans, then: ", fault);
}
