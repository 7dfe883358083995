// The networks whose plans are compared. None says anything of devices: plans are overrides.
// 96 samples in batches of 24 and 25 epochs are 100 steps.
#pragma once

#include <string>

namespace trainctl::jobs {

inline const std::string kMlp = R"(
name: mlp
seed: 3
dataset: {type: random, shape: [4, 6], label_dtype: f32, batch: 24, samples: 96}
network:
  - {type: flatten}
  - {name: layer1, type: dense, units: 48}
  - {name: relu1, type: relu}
  - {name: layer2, type: dense, units: 48}
  - {name: relu2, type: relu}
  - {name: layer3, type: dense, units: 1}
loss: mae
optimizer: {type: sgd, learning_rate: 0.01}
train: {epochs: 25}
launch: {ranks: 1, device: cpu}
)";

/// Nothing here is divisible by 2 or 4 but the batch, and biases and a bias-less layer mix.
inline const std::string kOdd = R"(
name: odd
seed: 4
dataset: {type: random, shape: [5, 3], label_dtype: f32, label_shape: [7], batch: 12, samples: 48}
network:
  - {type: flatten}
  - {name: a, type: dense, units: 33}
  - {name: a_act, type: tanh}
  - {name: b, type: matmul, units: 21}
  - {name: b_act, type: sigmoid}
  - {name: c, type: dense, units: 7, bias: false}
loss: mse
optimizer: {type: sgd, learning_rate: 0.05, momentum: 0.9}
train: {epochs: 25}
launch: {ranks: 1, device: cpu}
)";

inline const std::string kClassifier = R"(
name: classifier
seed: 5
dataset: {type: random, shape: [20], classes: 12, batch: 24, samples: 96}
network:
  - {name: fc1, type: dense, units: 24}
  - {name: norm1, type: layer_norm}
  - {name: act1, type: gelu}
  - {name: fc2, type: dense, units: 24}
  - {name: skip, type: add, inputs: [fc2, act1]}
  - {name: drop, type: dropout, p: 0.2}
  - {name: norm2, type: layer_norm}
  - {name: act2, type: gelu, approximate: tanh}
  - {name: head, type: dense, units: 12}
loss: softmax_cross_entropy
optimizer: {type: adamw, learning_rate: 0.001, weight_decay: 0.05, clip_norm: 0.5}
train: {epochs: 25}
launch: {ranks: 1, device: cpu}
)";

inline const std::string kBatchNorm = R"(
name: batch_norm
seed: 6
dataset: {type: random, shape: [10], label_dtype: f32, label_shape: [4], batch: 24, samples: 96}
network:
  - {name: fc1, type: dense, units: 16}
  - {name: bn1, type: batch_norm}
  - {name: act1, type: relu}
  - {name: drop1, type: dropout, p: 0.3}
  - {name: fc2, type: dense, units: 16}
  - {name: bn2, type: batch_norm, affine: false}
  - {name: act2, type: sigmoid}
  - {name: fc3, type: dense, units: 4}
loss: mse
optimizer: {type: sgd, learning_rate: 0.05, momentum: 0.9, nesterov: true, weight_decay: 0.001}
train: {epochs: 25}
launch: {ranks: 1, device: cpu}
)";

/// Tied embeddings: `head` uses the table of `embed`.
inline const std::string kLanguage = R"(
name: language
seed: 7
dataset: {type: random, shape: [6], dtype: i32, label_shape: [6], classes: 24, batch: 12, samples: 48}
network:
  - {name: embed, type: embedding, vocab: 24, units: 12, init_std: 0.1}
  - {name: norm1, type: layer_norm}
  - {name: fc1, type: dense, units: 24}
  - {name: act1, type: gelu}
  - {name: fc2, type: dense, units: 12}
  - {name: skip, type: add, inputs: [fc2, norm1]}
  - {name: norm2, type: layer_norm}
  - {name: head, type: dense, units: 24, share: embed, bias: false}
loss: softmax_cross_entropy
optimizer: {type: adam, learning_rate: 0.002}
train: {epochs: 25}
launch: {ranks: 1, device: cpu}
)";

/// One head of attention by hand: batched products, softmax, transposes and a mean.
inline const std::string kAttention = R"(
name: attention
seed: 8
dataset: {type: random, shape: [4, 12], label_dtype: f32, label_shape: [8], batch: 24, samples: 96}
network:
  - {name: q, type: dense, units: 12, inputs: [data]}
  - {name: k, type: dense, units: 12, inputs: [data]}
  - {name: v, type: dense, units: 12, inputs: [data]}
  - {name: scores, type: matmul, inputs: [q, k], transpose_b: true}
  - {name: weights, type: softmax}
  - {name: mixed, type: matmul, inputs: [weights, v]}
  - {name: turned, type: transpose, perm: [0, 2, 1]}
  - {name: mean, type: reduce_mean, dims: [2]}
  - {name: gate, type: sigmoid}
  - {name: gated, type: mul, inputs: [mean, gate]}
  - {name: out, type: dense, units: 8}
loss: mse
optimizer: {type: sgd, learning_rate: 0.1, clip_norm: 1.0}
train: {epochs: 25}
launch: {ranks: 1, device: cpu}
)";

/// kMlp with its two wide layers cut over the ranks by hand: layer1's rows, layer2's columns, and the sum of
/// the parts by a layer. `units` is what one rank of four holds, and so are the features that layer2's bound
/// of initial weights would be made from; init_std says it for both.
inline const std::string kHybridTensorParallel = R"(
name: hybrid_mlp
seed: 3
dataset: {type: random, shape: [4, 6], label_dtype: f32, batch: 24, samples: 96}
network:
  - {type: flatten}
  - {name: layer1, type: dense, units: 12}
  - {name: relu1, type: relu}
  - {name: layer2, type: dense, units: 48, bias: false, init_std: 0.1}
  - {name: sum2, type: all_reduce}
  - {name: relu2, type: relu}
  - {name: layer3, type: dense, units: 1}
loss: mae
optimizer: {type: sgd, learning_rate: 0.01}
train: {epochs: 25}
parallel:
  mode: hybrid_parallel
  full_batch: true
  strategies: {layer1: [[1, 1], [4, 1], [4]], layer2: [[1, 1], [1, 4]]}
launch: {ranks: 4, device: cpu}
)";

/// What kHybridTensorParallel computes, on one rank.
inline const std::string kMlpWithoutBias2 = R"(
name: mlp
seed: 3
dataset: {type: random, shape: [4, 6], label_dtype: f32, batch: 24, samples: 96}
network:
  - {type: flatten}
  - {name: layer1, type: dense, units: 48}
  - {name: relu1, type: relu}
  - {name: layer2, type: dense, units: 48, bias: false, init_std: 0.1}
  - {name: relu2, type: relu}
  - {name: layer3, type: dense, units: 1}
loss: mae
optimizer: {type: sgd, learning_rate: 0.01}
train: {epochs: 25}
launch: {ranks: 1, device: cpu}
)";

/// kMlp with every other collective as a layer, on 2 ranks that hold half of the batch each: the batch is
/// gathered before layer2, whose units are cut, and what layer3 makes of them is summed and cut again.
inline const std::string kHybridGatherScatter = R"(
name: hybrid_gather
seed: 3
dataset: {type: random, shape: [4, 6], label_dtype: f32, batch: 24, samples: 96}
network:
  - {type: flatten}
  - {name: layer1, type: dense, units: 48}
  - {name: turned, type: all_to_all, split_dim: 1, concat_dim: 0}
  - {name: relu1, type: relu}
  - {name: turned_back, type: all_to_all, split_dim: 0, concat_dim: 1}
  - {name: gathered, type: all_gather}
  - {name: layer2, type: dense, units: 24}
  - {name: relu2, type: relu}
  - {name: layer3, type: dense, units: 1, bias: false, init_std: 0.1}
  - {name: scattered, type: reduce_scatter}
loss: mae
optimizer: {type: sgd, learning_rate: 0.01}
train: {epochs: 25}
parallel:
  mode: hybrid_parallel
  strategies: {layer2: [[1, 1], [2, 1], [2]], layer3: [[1, 1], [1, 2]]}
launch: {ranks: 2, device: cpu}
)";

/// What kHybridGatherScatter computes, on one rank.
inline const std::string kMlpWithoutBias3 = R"(
name: mlp
seed: 3
dataset: {type: random, shape: [4, 6], label_dtype: f32, batch: 24, samples: 96}
network:
  - {type: flatten}
  - {name: layer1, type: dense, units: 48}
  - {name: relu1, type: relu}
  - {name: layer2, type: dense, units: 48}
  - {name: relu2, type: relu}
  - {name: layer3, type: dense, units: 1, bias: false, init_std: 0.1}
loss: mae
optimizer: {type: sgd, learning_rate: 0.01}
train: {epochs: 25}
launch: {ranks: 1, device: cpu}
)";

/// Everybody has the whole batch, but all go on with what rank 0 made of it in layer1.
inline const std::string kHybridBroadcast = R"(
name: hybrid_broadcast
seed: 3
dataset: {type: random, shape: [4, 6], label_dtype: f32, batch: 24, samples: 96}
network:
  - {type: flatten}
  - {name: layer1, type: dense, units: 48}
  - {name: relu1, type: relu}
  - {name: told, type: broadcast}
  - {name: layer2, type: dense, units: 48}
  - {name: relu2, type: relu}
  - {name: layer3, type: dense, units: 1}
loss: mae
optimizer: {type: sgd, learning_rate: 0.01}
train: {epochs: 25}
parallel: {mode: hybrid_parallel, full_batch: true}
launch: {ranks: 3, device: cpu}
)";

}  // namespace trainctl::jobs
