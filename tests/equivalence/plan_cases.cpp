// The table. Every mode and product of modes has a row; so do the ranks 1, 2, 3, 4, 6, 7, 8 and 12.
#include "tests/equivalence/plan_cases.h"

namespace trainctl {
namespace {

const char* const kData = "parallel.mode=data_parallel";
const char* const kSemi = "parallel.mode=semi_auto_parallel";
const char* const kHybrid = "parallel.mode=hybrid_parallel";
const char* const kTwoStages = "parallel.stages=2";
const char* const kMicro2 = "parallel.micro_batches=2";
const char* const kMicro4 = "parallel.micro_batches=4";
const char* const kGpipe = "parallel.schedule=gpipe";
const char* const kShard1 = "parallel.optimizer_shard={level: 1, min_kb: 0}";
const char* const kShard2 = "parallel.optimizer_shard={level: 2, min_kb: 0}";
const char* const kShard3 = "parallel.optimizer_shard={level: 3, min_kb: 0}";
const char* const kShard2Large = "parallel.optimizer_shard={level: 2, min_kb: 4}";
const char* const kFull = "parallel.full_batch=true";
const char* const kNoFull = "parallel.full_batch=false";
const char* const kMlpStages = "parallel.stage_config={layer1: 0, relu1: 0, layer2: 1, relu2: 1, layer3: 1}";
const char* const kAdam001 = "optimizer={type: adam, learning_rate: 0.001}";
// Not mae with adam: its gradients are sums of +-1/24 that cancel to 0 or to rounding, depending on the order,
// and adam turns both into steps of full size.
const char* const kMse = "loss=mse";
const char* const kClip = "optimizer={type: sgd, learning_rate: 0.02, momentum: 0.9, clip_norm: 0.3}";

std::string ranks(int n) { return "launch.ranks=" + std::to_string(n); }

}  // namespace

const std::vector<PlanCase>& plan_cases() {
  static const std::vector<PlanCase> cases = {
      // data_parallel
      {"mlp: one rank, recompute", "mlp", {}, {ranks(1), "parallel.recompute=[relu1, relu2]"}},
      {"mlp: data parallel, 2 ranks", "mlp", {}, {ranks(2), kData}},
      {"mlp: data parallel, 3 ranks", "mlp", {}, {ranks(3), kData}},
      {"mlp: data parallel, 4 ranks, whole batches", "mlp", {}, {ranks(4), kData, kFull}},
      {"mlp: data parallel, 6 ranks, 4 micro-batches", "mlp", {kMicro4}, {ranks(6), kData}},
      {"mlp: data parallel, 8 ranks", "mlp", {}, {ranks(8), kData, kNoFull}},
      {"mlp: data parallel, 12 ranks, level 1", "mlp", {}, {ranks(12), kData, kShard1}},
      {"mlp: data parallel, 4 ranks, level 2, large buckets alone", "mlp", {}, {ranks(4), kData, kShard2Large}},
      {"mlp: data parallel, 3 ranks, level 3, micro-batches", "mlp", {kMicro2}, {ranks(3), kData, kShard3}},
      {"mlp: clipped, 4 ranks, level 2", "mlp", {kClip}, {ranks(4), kData, kShard2}},
      {"mlp: clipped, 4 ranks, level 3", "mlp", {kClip}, {ranks(4), kData, kShard3}},
      {"mlp: adam, 8 ranks, level 1", "mlp", {kAdam001, kMse}, {ranks(8), kData, kShard1}, kAdamTolerance},
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
      // norms, dropout, adamw with clipping
      {"classifier: data parallel, 4 ranks", "classifier", {}, {ranks(4), kData}, kAdamTolerance},
      {"classifier: data parallel, 3 ranks, level 2", "classifier", {}, {ranks(3), kData, kShard2}, kAdamTolerance},
      {"classifier: 8 ranks, level 3, micro-batches",
       "classifier",
       {"parallel.micro_batches=3"},
       {ranks(8), kData, kShard3},
       kAdamTolerance},
      {"classifier: rows of fc1, columns of fc2, 4 ranks",
       "classifier",
       {},
       {ranks(4), kSemi, "parallel.strategies={fc1: [[2, 1], [2, 1]], fc2: [[2, 2], [1, 2]]}"},
       kAdamTolerance},
      {"classifier: 2 stages of 2, recompute, level 1",
       "classifier",
       {kMicro4},
       {ranks(4), kSemi, kTwoStages, kShard1, "parallel.recompute=[norm1, act1, drop, norm2]",
        "parallel.strategies={fc2: [[1, 2], [1, 2]]}"},
       kAdamTolerance},
      {"batch_norm: data parallel, 4 ranks", "batch_norm", {}, {ranks(4), kData}},
      {"batch_norm: data parallel, 6 ranks, 2 micro-batches", "batch_norm", {kMicro2}, {ranks(6), kData}},
      {"batch_norm: features cut, 2 ranks", "batch_norm", {}, {ranks(2), kSemi, "parallel.strategies={bn1: [[1, 2]]}"}},
      {"batch_norm: batch and features, 8 ranks, level 1",
       "batch_norm",
       {},
       {ranks(8), kSemi, kShard1, "parallel.strategies={bn1: [[4, 2]], fc2: [[2, 1], [4, 1]]}"}},
      {"batch_norm: 2 stages of 2, recompute, gpipe",
       "batch_norm",
       {kMicro2},
       {ranks(4), kSemi, kTwoStages, kGpipe, "parallel.recompute=[bn1, act1, drop1]"}},
      // shared parameters
      {"language: data parallel, 4 ranks", "language", {}, {ranks(4), kData}, kAdamTolerance},
      {"language: tied over 2 stages", "language", {kMicro2}, {ranks(2), kSemi, kTwoStages}, kAdamTolerance},
      {"language: tied over 2 stages of 3, level 1",
       "language",
       {kMicro2},
       {ranks(6), kSemi, kTwoStages, kShard1},
       kAdamTolerance},
      {"language: tied over 3 stages of 2, 1f1b, clipped adamw",
       "language",
       {kMicro2, "optimizer={type: adamw, learning_rate: 0.002, weight_decay: 0.01, clip_norm: 0.5}"},
       {ranks(6), kSemi, "parallel.stages=3", kShard2},
       kAdamTolerance},
      {"language: rows of the table cut, 4 ranks",
       "language",
       {},
       {ranks(4), kSemi, "parallel.strategies={embed: [[2, 1], [2, 1]], fc1: [[2, 1, 1], [2, 1]]}"},
       kAdamTolerance},
      // attention
      {"attention: data parallel, 3 ranks", "attention", {}, {ranks(3), kData}},
      {"attention: units cut, 4 ranks",
       "attention",
       {},
       {ranks(4), kSemi,
        "parallel.strategies={q: [[2, 1, 1], [2, 1]], k: [[2, 1, 1], [2, 1]], v: [[1, 1, 1], [4, 1]], out: [[2, 2], "
        "[1, 2]]}"}},
      {"attention: 2 stages of 4, level 2", "attention", {kMicro2}, {ranks(8), kSemi, kTwoStages, kShard2}},
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
      // optimizer_shard with buckets that are too small for it
      {"mlp: level 1, all buckets too small",
       "mlp",
       {},
       {ranks(4), kData, "parallel.optimizer_shard={level: 1, min_kb: 1024}"}},
      {"mlp: level 3, large buckets alone, 6 ranks",
       "mlp",
       {kMicro2},
       {ranks(6), kData, "parallel.optimizer_shard={level: 3, min_kb: 4}"}},
      {"language: level 3 in 2 stages, whole batches",
       "language",
       {kMicro2},
       {ranks(4), kData, kTwoStages, kShard3, kFull},
       kAdamTolerance},
      {"classifier: adamw, 12 ranks in 3 stages, level 3, recompute",
       "classifier",
       {kMicro2},
       {ranks(12), kSemi, "parallel.stages=3", kShard3, "parallel.recompute=['norm*', 'act*', drop]", kGpipe},
       kAdamTolerance},
  };
  return cases;
}

}  // namespace trainctl
