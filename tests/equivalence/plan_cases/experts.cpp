// Mixtures of experts.
#include "tests/equivalence/plan_cases/families.h"
#include "tests/equivalence/plan_cases/overrides.h"

namespace trainctl {

using namespace plan_overrides;

std::vector<PlanCase> expert_cases() {
  return {
      // mixtures of experts
      {"moe: data parallel, 3 ranks, level 3", "moe", {}, {ranks(3), kData, kShard3}, kAdamTolerance},
      {"moe: experts over the ranks of the batch, 4 ranks, level 1",
       "moe",
       {},
       {ranks(4), kSemi, kShard1, "parallel.strategies={'moe_?': [[1, 1, 1], [1, 1], [4, 1, 1, 1], [4, 1, 1]]}"},
       kAdamTolerance},
      {"moe: experts and hidden features and batch cut, 8 ranks, micro-batches, recomputed",
       "moe",
       {kMicro2},
       {ranks(8), kSemi, "parallel.strategies={'moe_?': [[2, 1, 1], [1, 1], [2, 1, 2, 1], [2, 1, 2]]}",
        "parallel.recompute=['moe_?']"},
       kAdamTolerance},
      {"moe: rows of tokens and experts cut, 2 stages of 4, level 2",
       "moe",
       {kMicro2},
       {ranks(8), kSemi, kTwoStages, kShard2,
        "parallel.strategies={'moe_?': [[1, 2, 1], [1, 1], [2, 1, 1, 1], [2, 1, 1]]}"},
       kAdamTolerance},
      {"moe: tokens exchanged over 4 ranks, level 2",
       "moe",
       {},
       {ranks(4), kSemi, kShard2, "parallel.expert=4", "parallel.expert_method=all_to_all"},
       kAdamTolerance},
      {"moe: tokens exchanged over 2 of 4 ranks, micro-batches, recomputed",
       "moe",
       {kMicro2},
       {ranks(4), kSemi, "parallel.strategies={'moe_?': [[2, 2, 1], [1, 1], [2, 1, 1, 1], [2, 1, 1]]}",
        "parallel.recompute=['moe_?']"},
       kAdamTolerance},
      {"moe: tokens exchanged in each of 2 stages of 4 ranks, hidden features cut, zero_bubble",
       "moe",
       {kMicro2},
       {ranks(8), kSemi, kTwoStages, "parallel.schedule=zero_bubble",
        "parallel.strategies={'moe_?': [[2, 1, 1], [1, 1], [2, 1, 2, 1], [2, 1, 2]]}"},
       kAdamTolerance},
      // balanced experts
      {"balance: data parallel, 3 ranks, level 3", "balance", {}, {ranks(3), kData, kShard3}, kAdamTolerance},
      {"balance: experts over 4 ranks, level 1",
       "balance",
       {},
       {ranks(4), kSemi, kShard1, "parallel.expert=4"},
       kAdamTolerance},
      {"balance: tokens exchanged over 4 ranks, level 1",
       "balance",
       {},
       {ranks(4), kSemi, kShard1, "parallel.expert=4", "parallel.expert_method=all_to_all"},
       kAdamTolerance},
      {"balance: experts over 2 of 4 ranks of 2 stages, micro-batches, recomputed",
       "balance",
       {kMicro2},
       {ranks(8), kSemi, kTwoStages, "parallel.expert=2", "parallel.recompute=['moe_?*']"},
       kAdamTolerance},
      {"balance: rows of tokens and hidden features cut, micro-batches",
       "balance",
       {kMicro2},
       {ranks(6), kSemi,
        "parallel.strategies={moe_b: [[1, 3, 1], [1, 1], [2, 1, 1, 1], [2, 1, 1]], moe_a: [[3, 1, 1], "
        "[1, 1], [1, 1, 2, 1], [1, 1, 2]]}"},
       kAdamTolerance},
  };
}

}  // namespace trainctl
