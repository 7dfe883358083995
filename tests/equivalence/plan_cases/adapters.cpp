// Frozen parameters and adapters.
#include "tests/equivalence/plan_cases/families.h"
#include "tests/equivalence/plan_cases/overrides.h"

namespace trainctl {

using namespace plan_overrides;

std::vector<PlanCase> adapter_cases() {
  return {
      // frozen parameters and adapters
      {"freeze: data parallel, 3 ranks, level 2", "classifier", {kFreeze}, {ranks(3), kData, kShard2}},
      {"freeze: 2 stages of 2, micro-batches", "classifier", {kFreeze, kMicro2}, {ranks(4), kSemi, kTwoStages}},
      {"lora: data parallel, 4 ranks, level 3", "gpt", {kLora}, {ranks(4), kData, kShard3}, kAdamTolerance},
      {"lora: heads and hidden units, 2 ranks by 2, level 1",
       "gpt",
       {kLora, kMicro2},
       {ranks(4), kSemi, kShard1, megatron(kGpt, 2, 2)},
       kAdamTolerance},
      {"lora: 2 stages of 2, recompute",
       "gpt",
       {kLora, kMicro2},
       {ranks(4), kSemi, kTwoStages, kShard2, "parallel.recompute=['h.*']"},
       kAdamTolerance},
      {"lora: rows of tokens cut, 3 ranks",
       "gpt",
       {kLora},
       {ranks(3), kSemi, "parallel.strategies={'h.*.ln?': [[1, 3, 1]]}"},
       kAdamTolerance},
      {"lora beside weights in bf16: heads and hidden units, 2 ranks by 2, level 3",
       "gpt",
       {kLora, kMicro2, kFrozenBf16},
       {ranks(4), kSemi, kShard3, megatron(kGpt, 2, 2)},
       kAdamTolerance},
      {"lora beside weights in bf16: 2 stages of 2, recompute",
       "gpt",
       {kLora, kMicro2, kFrozenBf16},
       {ranks(4), kSemi, kTwoStages, "parallel.recompute=['h.*']"},
       kAdamTolerance},
  };
}

}  // namespace trainctl
