// Strategies and pipeline stages of multi-layer perceptrons.
#include "tests/equivalence/plan_cases/families.h"
#include "tests/equivalence/plan_cases/overrides.h"

namespace trainctl {

using namespace plan_overrides;

std::vector<PlanCase> strategy_cases() {
  return {
      // semi_auto_parallel, one stage
      {"mlp: no strategies, 4 ranks", "mlp", {}, {ranks(4), kSemi}},
      {"mlp: rows of layer1, 2 ranks", "mlp", {}, {ranks(2), kSemi, "parallel.strategies={layer1: [[1, 1], [2, 1]]}"}},
      {"mlp: columns of layer2, 3 ranks",
       "mlp",
       {},
       {ranks(3), kSemi, "parallel.strategies={layer2: [[1, 3], [1, 3]]}"}},
      {"mlp: rows then columns, 4 ranks",
       "mlp",
       {},
       {ranks(4), kSemi, "parallel.strategies={layer1: [[1, 1], [4, 1]], layer2: [[1, 4], [1, 4]]}"}},
      {"mlp: batch and rows, 8 ranks",
       "mlp",
       {},
       {ranks(8), kSemi, "parallel.strategies={layer1: [[2, 1], [4, 1]], layer2: [[4, 1], [2, 1]]}"}},
      {"mlp: batch, rows and columns, 12 ranks",
       "mlp",
       {},
       {ranks(12), kSemi, "parallel.strategies={layer1: [[3, 1], [4, 1]], layer2: [[2, 2], [3, 2]]}"}},
      {"mlp: cut relu, micro-batches, 6 ranks",
       "mlp",
       {kMicro2},
       {ranks(6), kSemi, "parallel.strategies={relu1: [[2, 3]], layer3: [[6, 1], [1, 1]]}", kFull}},
      {"mlp: batch and rows, level 1, 4 ranks",
       "mlp",
       {},
       {ranks(4), kSemi, "parallel.strategies={layer1: [[2, 1], [2, 1]], layer2: [[2, 1], [2, 1]]}", kShard1}},
      {"mlp: batch and rows, level 3, clipped, 8 ranks",
       "mlp",
       {kClip},
       {ranks(8), kSemi, "parallel.strategies={layer1: [[4, 1], [2, 1]], layer2: [[4, 2], [1, 2]]}", kShard3}},
      // stages
      {"mlp: 2 stages of one rank, 1f1b", "mlp", {kMicro4}, {ranks(2), kSemi, kTwoStages, kMlpStages}},
      {"mlp: 2 stages of one rank, gpipe", "mlp", {kMicro4}, {ranks(2), kSemi, kTwoStages, kMlpStages, kGpipe}},
      {"mlp: 3 stages, balanced, 4 micro-batches", "mlp", {kMicro4}, {ranks(3), kSemi, "parallel.stages=3"}},
      {"mlp: the reference job, 2 stages of 4",
       "mlp",
       {kMicro4},
       {ranks(8), kSemi, kTwoStages, kMlpStages, kFull, "parallel.recompute=[relu1, relu2]", kShard1,
        "parallel.strategies={layer1: [[2, 1], [2, 1]], relu1: [[2, 2]], layer2: [[2, 1], [2, 1]], relu2: [[1, 4]]}"}},
      {"mlp: 2 stages of 3, gpipe, level 2",
       "mlp",
       {kMicro2},
       {ranks(6), kSemi, kTwoStages, kMlpStages, kGpipe, kShard2,
        "parallel.strategies={layer1: [[1, 1], [3, 1]], layer2: [[3, 1], [1, 1]]}"}},
      {"mlp: 2 stages of 2, level 3, recompute all",
       "mlp",
       {kMicro2},
       {ranks(4), kSemi, kTwoStages, kMlpStages, kShard3, "parallel.recompute=['*']"}},
      {"mlp: data parallel in 3 stages of 2", "mlp", {kMicro2}, {ranks(6), kData, "parallel.stages=3", kGpipe}},
      {"mlp: 2 stages of 6, 1f1b, whole batches",
       "mlp",
       {kMicro2},
       {ranks(12), kSemi, kTwoStages, kMlpStages, kFull,
        "parallel.strategies={layer1: [[2, 1], [3, 1]], layer2: [[3, 2], [1, 2]]}"}},
      // odd shapes
      {"odd: data parallel, 3 ranks", "odd", {}, {ranks(3), kData}},
      {"odd: rows in 3, batch in 2, 6 ranks",
       "odd",
       {},
       {ranks(6), kSemi, "parallel.strategies={a: [[2, 1], [3, 1]], b: [[2, 3], [3, 1]]}"}},
      {"odd: 7 columns of c over 7 ranks",
       "odd",
       {},
       {ranks(7), kSemi, "parallel.strategies={b: [[1, 1], [1, 7]], c: [[1, 1], [7, 1]]}"}},
      {"odd: 2 stages of 3, level 2",
       "odd",
       {kMicro2},
       {ranks(6), kSemi, kTwoStages, kShard2, "parallel.stage_config={a*: 0, b*: 1, c: 1}"}},
      {"odd: 12 ranks, more than divide some dims",
       "odd",
       {},
       {ranks(12), kSemi, "parallel.strategies={a: [[4, 1], [3, 1]]}"}},
  };
}

}  // namespace trainctl
