// Collectives that the network itself contains (hybrid_parallel).
#include "tests/equivalence/plan_cases/families.h"
#include "tests/equivalence/plan_cases/overrides.h"

namespace trainctl {

using namespace plan_overrides;

std::vector<PlanCase> hybrid_cases() {
  return {
      // hybrid_parallel
      {"hybrid: data parallel by hand, 4 ranks", "mlp", {}, {ranks(4), kHybrid}},
      {"hybrid: data parallel by hand, 3 ranks, micro-batches, level 1",
       "mlp",
       {kMicro2},
       {ranks(3), kHybrid, kShard1}},
      {"hybrid: each rank the whole batch, 2 ranks", "mlp", {}, {ranks(2), kHybrid, kFull}},
      {"hybrid: tensor parallel by hand, 4 ranks",
       "hybrid_tensor_parallel",
       {},
       {ranks(4)},
       kSgdTolerance,
       "mlp_without_bias2"},
      {"hybrid: tensor parallel by hand, micro-batches, level 2",
       "hybrid_tensor_parallel",
       {kMicro2},
       {ranks(4), kShard2},
       kSgdTolerance,
       "mlp_without_bias2"},
      {"hybrid: gather, cut units, scatter, all_to_all and back",
       "hybrid_gather_scatter",
       {},
       {ranks(2)},
       kSgdTolerance,
       "mlp_without_bias3"},
      {"hybrid: the same in 2 stages, micro-batches, level 1",
       "hybrid_gather_scatter",
       {kMicro2},
       {ranks(4), kTwoStages, kShard1,
        "parallel.stage_config={flatten: 0, layer1: 0, turned*: 0, relu1: 0, gathered: 0, layer2: 1, relu2: 1, layer3: "
        "1, scattered: 1}"},
       kSgdTolerance,
       "mlp_without_bias3"},
      {"hybrid: a broadcast, whose backward sums to the root",
       "hybrid_broadcast",
       {},
       {ranks(3)},
       kSgdTolerance,
       "mlp"},
  };
}

}  // namespace trainctl
