// Tests of the list of plans that a search has tried.
#include "engine/search/trials/tried_plans.h"

#include <doctest/doctest.h>

#include "engine/base/error.h"

namespace trainctl {
namespace {

/// A plan whose time was estimated as a sum, from trials of the job with fewer blocks.
TriedPlan sum_of(int stages, int64_t bucket_bytes, double seconds, int64_t memory = 100) {
  TriedPlan plan;
  plan.choice.stages = stages;
  plan.choice.bucket_bytes = bucket_bytes;  // so that choices differ
  plan.trial = {.seconds = seconds, .memory = memory, .parts = {{"products", seconds}}};
  plan.trial.in_full = plan.trial.of_all_ranks = false;
  return plan;
}

/// In full each plan takes `seconds`; `tried` counts the plans that were tried so.
TryPlan whole_of(double seconds, int& tried) {
  return [seconds, &tried](const JobSpec&, TriedRanks ranks) {
    CHECK(ranks == TriedRanks::all);
    ++tried;
    return Trial{.seconds = seconds, .memory = 100};
  };
}

}  // namespace

TEST_CASE(
    "tried plans: sums of the same number of stages are assumed to be off by the same factor, so one full trial "
    "suffices") {
  int tried = 0;
  const JobSpec job;
  const TryPlan try_plan = whole_of(1.03, tried);
  TriedPlans plans(job, 0, try_plan);
  const size_t best = plans.add(sum_of(1, 0, 1.0)), second = plans.add(sum_of(1, 1, 1.02)),
               of_stages = plans.add(sum_of(2, 0, 1.5));
  CHECK(plans.settle() == best);
  CHECK(tried == 1);
  CHECK(plans[best].trial.seconds == 1.03);
  CHECK(plans[best].trial.in_full);
  CHECK(plans[second].trial.seconds == doctest::Approx(1.02 * 1.03));
  CHECK(plans[second].trial.parts[0].second == doctest::Approx(1.02 * 1.03));
  CHECK(!plans[second].trial.in_full);
  CHECK(plans[of_stages].trial.seconds == 1.5);
  CHECK(plans.settle() == best);
  CHECK(tried == 1);
}

TEST_CASE("tried plans: if an estimated sum is far off, the next best plan is tried in full too") {
  int tried = 0;
  const JobSpec job;
  const TryPlan try_plan = whole_of(1.2, tried);
  TriedPlans plans(job, 0, try_plan);
  plans.add(sum_of(1, 0, 1.0));
  plans.add(sum_of(1, 1, 1.1));
  const size_t third = plans.add(sum_of(1, 2, 1.4));
  plans.settle();
  CHECK(tried == 2);
  CHECK(plans[third].trial.seconds == 1.4);
}

TEST_CASE("tried plans: one that fits is best, however fast one is that does not, and that none fits is an error") {
  const JobSpec job;
  const TryPlan try_plan = [](const JobSpec& spec, TriedRanks) {
    const bool is_small = spec.parallel.bucket_bytes > 0;
    return Trial{.seconds = is_small ? 2.0 : 1.0, .memory = is_small ? 100 : 200};
  };
  TriedPlans plans(job, 150, try_plan);
  plans.add(sum_of(1, 0, 1.0, 200));
  CHECK(plans.is_short_of_memory());
  CHECK_THROWS_AS(TriedPlans(plans).settle(), SpecError);
  const size_t fits = plans.add(sum_of(1, 1, 2.0, 100));
  CHECK(plans.settle() == fits);
}

}  // namespace trainctl
