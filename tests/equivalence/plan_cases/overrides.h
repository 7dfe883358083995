// Overrides that several rows of the table of plans use.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

namespace trainctl::plan_overrides {

constexpr const char* kData = "parallel.mode=data_parallel";
constexpr const char* kSemi = "parallel.mode=semi_auto_parallel";
constexpr const char* kHybrid = "parallel.mode=hybrid_parallel";
constexpr const char* kTwoStages = "parallel.stages=2";
constexpr const char* kMicro2 = "parallel.micro_batches=2";
constexpr const char* kMicro4 = "parallel.micro_batches=4";
constexpr const char* kGpipe = "parallel.schedule=gpipe";
constexpr const char* kShard1 = "parallel.optimizer_shard={level: 1, min_kb: 0}";
constexpr const char* kShard2 = "parallel.optimizer_shard={level: 2, min_kb: 0}";
constexpr const char* kShard3 = "parallel.optimizer_shard={level: 3, min_kb: 0}";
constexpr const char* kShard2Large = "parallel.optimizer_shard={level: 2, min_kb: 4}";
constexpr const char* kOnHosts = "launch.target=slurm";
constexpr const char* kHosts2 = "launch.slurm.nodes=2";
constexpr const char* kHosts3 = "launch.slurm.nodes=3";
constexpr const char* kFull = "parallel.full_batch=true";
constexpr const char* kNoFull = "parallel.full_batch=false";
constexpr const char* kMlpStages = "parallel.stage_config={layer1: 0, relu1: 0, layer2: 1, relu2: 1, layer3: 1}";
constexpr const char* kAdam001 = "optimizer={type: adam, learning_rate: 0.001}";
// The loss of rows with adam. The gradients of mae would be sums of +-1/24 that cancel to 0 or to a rounding error,
// depending on the order, and adam turns both into steps of full size.
constexpr const char* kMse = "loss=mse";
constexpr const char* kClip = "optimizer={type: sgd, learning_rate: 0.02, momentum: 0.9, clip_norm: 0.3}";
// The optimizer of rows whose loss has a scale, which would not change a step of adam.
constexpr const char* kSgd = "optimizer={type: sgd, learning_rate: 0.05, momentum: 0.9}";
constexpr const char* kIgnored = "loss={type: softmax_cross_entropy, label_smoothing: 0.1, ignore_index: 3}";

constexpr const char* kFrozenBf16 = "train.frozen_type=bf16";

constexpr const char* kGroups =
    "optimizer={type: sgd, learning_rate: 0.02, momentum: 0.9, weight_decay: 0.01, clip_norm: 0.3, groups: "
    "[{parameters: "
    "['*.bias'], weight_decay: 0, momentum: 0}, {parameters: [layer2.*], learning_rate_scale: 0.1}]}";
constexpr const char* kPlainGroups =
    "optimizer={type: sgd, learning_rate: 0.01, groups: [{parameters: [layer2.weight], learning_rate_scale: 0.5}]}";
constexpr const char* kAdamGroups =
    "optimizer={type: adamw, learning_rate: 0.001, weight_decay: 0.1, groups: [{parameters: ['*.bias', '*norm*'], "
    "weight_decay: 0}, {parameters: ['fc2.*'], learning_rate_scale: 0.1, eps: 0.001}]}";

constexpr const char* kFreeze = "train.freeze=['fc1.*', 'fc2.bias']";
constexpr const char* kLora =
    "adapters={lora: {layers: ['h.*.qkv', 'h.*.down', head], rank: 4, alpha: 8, dropout: 0.1, rank_stabilized: true}}";

/// Sharding within each host. kOnHosts with kHosts2 or kHosts3 determines which ranks share a host.
inline std::string within_host(int level) {
  return fmt::format("parallel.optimizer_shard={{level: {}, min_kb: 0, within_host: true}}", level);
}

inline std::string ranks(int n) { return "launch.ranks=" + std::to_string(n); }

/// Shards the blocks of tests/jobs/gpt.yaml or llama.yaml as Megatron does, `ways` ways: `columns` by heads or hidden
/// units, proj and down by their inputs. `rows`: shards of the batch. `more`: strategies that follow.
inline std::string megatron(const std::vector<const char*>& columns, int ways, int rows = 1,
                            const std::string& more = "") {
  std::string all;
  for (const char* layer : columns) all += fmt::format("'h.*.{}': [[{}, 1, 1], [{}, 1]], ", layer, rows, ways);
  for (const char* layer : {"proj", "down"})
    all += fmt::format("'h.*.{0}': [[{1}, 1, {2}], [1, {2}]], ", layer, rows, ways);
  return "parallel.strategies={" + all + more + "}";
}

const std::vector<const char*> kGpt = {"qkv", "up"};
const std::vector<const char*> kLlama = {"qkv", "gate", "up"};
constexpr const char* kGptBlocks =
    "parallel.recompute=['h.*.ln?', h.*.qkv, h.*.attn, h.*.proj, h.*.sum1, h.*.up, h.*.act, h.*.down]";
constexpr const char* kBlocks = "parallel.recompute=['h.*']";
constexpr const char* kTokens = "dataset.shape=[16]";
constexpr const char* kLabels = "dataset.label_shape=[16]";
constexpr const char* kPlain = "optimizer={type: sgd, learning_rate: 0.1}";
constexpr const char* kHead5 = "parallel.head_pieces=5";
constexpr const char* kThreeStages = "parallel.stages=3";
constexpr const char* kTwoChunks = "parallel.chunks=2";
constexpr const char* kThreeChunks = "parallel.chunks=3";
constexpr const char* kInterleaved = "parallel.schedule=interleaved_1f1b";
constexpr const char* kZeroBubble = "parallel.schedule=zero_bubble";

}  // namespace trainctl::plan_overrides
