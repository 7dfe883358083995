// Pipeline schedules with chunks or separate weight gradients; a stage that has only the loss.
#include "tests/equivalence/plan_cases/families.h"
#include "tests/equivalence/plan_cases/overrides.h"

namespace trainctl {

using namespace plan_overrides;

std::vector<PlanCase> schedule_cases() {
  return {
      // the loss in a stage of its own
      {"mlp: 3 stages of one rank, the last with only the loss",
       "mlp",
       {kMicro4},
       {ranks(3), kSemi, "parallel.stages=3",
        "parallel.stage_config={layer1: 0, relu1: 0, layer2: 1, relu2: 1, layer3: 1, loss: 2}"}},
      {"mlp: 2 stages of 2, the last with only the loss, gpipe, level 1",
       "mlp",
       {kMicro2},
       {ranks(4), kData, kTwoStages, kGpipe, kShard1, "parallel.stage_config={'*': 0, loss: 1}"}},
      {"language: 3 stages of 2, the last with only the loss",
       "language",
       {kMicro2},
       {ranks(6), kSemi, "parallel.stages=3", "parallel.stage_config={'*': 1, embed: 0, loss: 2}"},
       kAdamTolerance},
      // interleaved_1f1b: chunks of layers; from `stages` ranks on
      {"mlp: 2 stages of 2 chunks, one rank each",
       "mlp",
       {kMicro4},
       {ranks(2), kSemi, kTwoStages, kTwoChunks, kInterleaved}},
      {"mlp: 2 stages of 2 chunks, 2 ranks each, recompute all, level 3",
       "mlp",
       {kMicro4},
       {ranks(4), kSemi, kTwoStages, kTwoChunks, kInterleaved, kShard3, "parallel.recompute=['*']"}},
      {"mlp: 2 stages of 2 chunks, uneven, the loss alone, clipped, level 2",
       "mlp",
       {kMicro2, kClip},
       {ranks(4), kData, kTwoStages, kTwoChunks, kInterleaved, kShard2,
        "parallel.stage_config={'*': 0, layer2: 1, relu2: 1, layer3: 2, loss: 3}"}},
      {"language: tied over chunks of one stage, level 2",
       "language",
       {kMicro2},
       {ranks(4), kData, kTwoStages, kTwoChunks, kInterleaved, kShard2,
        "parallel.stage_config={'*': 1, embed: 0, head: 2, loss: 3}"},
       kAdamTolerance},
      {"gpt: 2 stages of 3 chunks, tied over stages, values skip chunks",
       "gpt",
       {kMicro4},
       {ranks(2), kSemi, kTwoStages, kThreeChunks, kInterleaved},
       kAdamTolerance},
      {"gpt: 3 stages of 2 chunks of 2 ranks, level 1, blocks recomputed",
       "gpt",
       {"parallel.micro_batches=3"},
       {ranks(6), kSemi, kThreeStages, kTwoChunks, kInterleaved, kShard1, kBlocks},
       kAdamTolerance},
      // zero_bubble: weight gradients apart
      {"mlp: zero_bubble, 2 stages of one rank", "mlp", {kMicro4}, {ranks(2), kSemi, kTwoStages, kZeroBubble}},
      {"mlp: zero_bubble, 3 stages of 2, level 2, recompute all",
       "mlp",
       {kMicro4},
       {ranks(6), kSemi, kThreeStages, kZeroBubble, kShard2, "parallel.recompute=['*']"}},
      {"mlp: zero_bubble, one stage of 3, level 3", "mlp", {kMicro4}, {ranks(3), kData, kZeroBubble, kShard3}},
      {"language: zero_bubble, tied over 2 stages of 2, level 3",
       "language",
       {kMicro2},
       {ranks(4), kData, kTwoStages, kZeroBubble, kShard3},
       kAdamTolerance},
      {"gpt: zero_bubble, 2 stages of 2, heads and units cut, level 1",
       "gpt",
       {kMicro4},
       {ranks(4), kSemi, kTwoStages, kZeroBubble, kShard1, megatron(kGpt, 2)},
       kAdamTolerance},
      {"classifier: zero_bubble, 3 stages of one rank, recompute",
       "classifier",
       {kMicro2},
       {ranks(3), kSemi, kThreeStages, kZeroBubble, "parallel.recompute=['norm*', 'act*', drop]"},
       kAdamTolerance},
  };
}

}  // namespace trainctl
