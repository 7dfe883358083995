// parallel.rank_micro_batches: ranks that run different numbers of micro-batches.
#include "tests/equivalence/plan_cases/families.h"
#include "tests/equivalence/plan_cases/overrides.h"

namespace trainctl {

using namespace plan_overrides;

std::vector<PlanCase> uneven_rank_cases() {
  const std::string six = "parallel.micro_batches=6", twelve = "parallel.micro_batches=12";
  const std::string four_two = "parallel.rank_micro_batches=[4, 2]", five_one = "parallel.rank_micro_batches=[5, 1]";
  const std::string average = "optimizer={type: adamw, learning_rate: 0.001, average: {decay: 0.9}}";
  return {
      {"mlp: ranks with 4 and 2 micro-batches", "mlp", {six}, {ranks(2), kData, four_two}},
      {"mlp: ranks with 1 and 2 micro-batches, whole batches",
       "mlp",
       {"parallel.micro_batches=3"},
       {ranks(2), kData, kFull, "parallel.rank_micro_batches=[1, 2]"}},
      {"mlp: ranks with 5, 1, 4 and 2 micro-batches, level 1, clipped",
       "mlp",
       {kClip, kMse, twelve},
       {ranks(4), kData, kShard1, "parallel.rank_micro_batches=[5, 1, 4, 2]"}},
      {"mlp: ranks with 3, 1 and 2 micro-batches, groups, small buckets",
       "mlp",
       {kGroups, six},
       {ranks(3), kData, "parallel.rank_micro_batches=[3, 1, 2]", "parallel.bucket_bytes=256"}},
      {"mlp: ranks with 4 and 2 micro-batches, recompute",
       "mlp",
       {six},
       {ranks(2), kData, four_two, "parallel.recompute=[relu1, relu2]"}},
      {"functions: ranks with 5 and 1 micro-batches", "functions", {six}, {ranks(2), kData, five_one}},
      {"gpt: a tied table, ranks with 4 and 2 micro-batches",
       "gpt",
       {six},
       {ranks(2), kData, four_two},
       kAdamTolerance},
      {"gpt: ranks with 4 and 2 micro-batches, level 1, head in pieces",
       "gpt",
       {six},
       {ranks(2), kData, four_two, kShard1, kHead5},
       kAdamTolerance},
      {"transformer: dropout, ranks with 7, 1 and 4 micro-batches",
       "transformer",
       {twelve},
       {ranks(3), kData, "parallel.rank_micro_batches=[7, 1, 4]"},
       kAdamTolerance},
      {"llama: ranks with 5 and 1 micro-batches, blocks recomputed",
       "llama",
       {six},
       {ranks(2), kData, five_one, kBlocks},
       kAdamTolerance},
      {"documents: ranks with 4 and 2 micro-batches", "documents", {six}, {ranks(2), kData, four_two}, kAdamTolerance},
      {"gpt: ranks with 4 and 2 micro-batches, level 2",
       "gpt",
       {six},
       {ranks(2), kData, four_two, kShard2},
       kAdamTolerance},
      {"gpt: ranks with 3, 1 and 2 micro-batches, level 3",
       "gpt",
       {six},
       {ranks(3), kData, "parallel.rank_micro_batches=[3, 1, 2]", kShard3},
       kAdamTolerance},
      {"gpt: averaged weights, ranks with 4 and 2 micro-batches",
       "gpt",
       {six, average},
       {ranks(2), kData, four_two, kShard1},
       kAdamTolerance},
  };
}

}  // namespace trainctl
