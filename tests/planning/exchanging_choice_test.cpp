// Exchanges of tokens in plans that auto_parallel finds.
#include "engine/planning/exchanging_choice.h"

#include <doctest/doctest.h>

#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

PlanChoice cutting_experts(int64_t batch) {
  PlanChoice choice;
  choice.strategies.push_back(
      {.pattern = "moe_?", .cuts = {{batch, 1, 1}, {1, 1}, {2, 1, 1, 1}, {2, 1, 1}}, .path = "", .reason = ""});
  return choice;
}

}  // namespace

TEST_CASE("the same plan with an exchange cuts tokens over the ranks that share experts too") {
  const PlannedJob job = plan_job(job_spec("moe", {"launch.ranks=1"}));  // batch 12
  const auto exchanging = exchanging_choice(job.graph, cutting_experts(2));
  REQUIRE(exchanging);
  CHECK(exchanging->strategies[0].cuts[0] == Ints{4, 1, 1});
  CHECK(exchanging->strategies[0].cuts[2] == Ints{2, 1, 1, 1});
}

TEST_CASE("tokens that the ranks do not divide are not exchanged") {
  const PlannedJob job = plan_job(job_spec("moe", {"launch.ranks=1"}));
  CHECK_FALSE(exchanging_choice(job.graph, cutting_experts(4)));  // 8 ranks for a batch of 12
  CHECK_FALSE(exchanging_choice(job.graph, PlanChoice{}));
}
