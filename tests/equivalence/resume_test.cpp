// Saved under one plan, resumed under any: on the same plan with the same bits, on another within its tolerance.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/equivalence/harness.h"
#include "tests/equivalence/plan_cases.h"
#include "tests/equivalence/saved_run.h"
#include "tests/jobs/jobs.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

constexpr int64_t kResumeSteps = 12;

PlannedJob planned(const PlanCase& plan) {
  std::vector<std::string> overrides = plan.same;
  overrides.insert(overrides.end(), plan.plan.begin(), plan.plan.end());
  overrides.push_back("train={steps: " + std::to_string(kResumeSteps) + "}");
  return plan_job(job_spec(plan.job, overrides));
}

std::vector<float> from_step(const std::vector<float>& losses, int64_t step) {
  return {losses.begin() + step, losses.end()};
}

/// Plans of the same network, data and update: their runs follow one another.
bool follow_each_other(const PlanCase& a, const PlanCase& b) {
  return &a != &b && std::string(a.job) == b.job && a.same == b.same && !a.reference && !b.reference;
}

}  // namespace

TEST_CASE("a run that is resumed continues with the same bits on its plan, and within rounding on another") {
  const std::vector<PlanCase>& cases = plan_cases();
  for (size_t c = 0; c < cases.size(); c += 1) {
    const PlanCase& plan = cases[c];
    SUBCASE(plan.name.c_str()) {
      const ScratchFolder folder;
      std::mt19937 random(static_cast<unsigned>(c));
      const auto at = static_cast<int64_t>(1 + random() % (kResumeSteps - 1));
      CAPTURE(at);
      const SavedRun saved = run_and_save(planned(plan), at, folder.path());
      const RunResult again = resume(planned(plan), saved.path);
      CHECK(again.losses == from_step(saved.result.losses, at));
      CHECK(same_weights(again, saved.result));

      std::vector<const PlanCase*> others;
      for (const PlanCase& other : cases)
        if (follow_each_other(plan, other)) others.push_back(&other);
      if (others.empty()) continue;
      const PlanCase& other = *others[random() % others.size()];
      CAPTURE(other.name);
      const RunResult moved = resume(planned(other), saved.path);
      const std::vector<float> expected = from_step(saved.result.losses, at);
      REQUIRE(moved.losses.size() == expected.size());
      const double tolerance = std::max(plan.tolerance, other.tolerance);
      for (size_t i = 0; i < expected.size(); ++i)
        CHECK(std::abs(double(moved.losses[i]) - expected[i]) <= tolerance * std::abs(double(expected[i])));
    }
  }
}
