#include "tests/compile/jobs.h"

#include "engine/model/model.h"
#include "engine/spec/parse.h"

namespace trainctl {

const std::map<std::string, std::string> kNetworks = {{"mlp", R"(
dataset: {type: random, shape: [4, 6], label_dtype: f32, batch: 48}
network:
  - {type: flatten}
  - {name: a, type: dense, units: 24}
  - {name: a_act, type: relu}
  - {name: b, type: dense, units: 48}
  - {name: b_act, type: relu}
  - {name: c, type: dense, units: 24}
  - {name: c_act, type: relu}
  - {name: d, type: dense, units: 1}
loss: mae
optimizer: {type: sgd, learning_rate: 0.01, momentum: 0.9, clip_norm: 1.0}
)"},
                                                      {"norms", R"(
dataset: {type: random, shape: [24], label_dtype: i32, classes: 12, batch: 48}
network:
  - {name: a, type: dense, units: 24}
  - {name: bn, type: batch_norm}
  - {name: act, type: gelu}
  - {name: drop, type: dropout, p: 0.2}
  - {name: b, type: dense, units: 24}
  - {name: ln, type: layer_norm}
  - {name: skip, type: add, inputs: [ln, act]}
  - {name: far, type: mul, inputs: [skip, a]}
  - {name: d, type: dense, units: 12}
loss: softmax_cross_entropy
optimizer: {type: adamw, learning_rate: 0.001, clip_norm: 0.5}
)"},
                                                      {"tied", R"(
dataset: {type: random, shape: [6], dtype: i32, label_shape: [6], label_dtype: i32, classes: 24, batch: 48}
network:
  - {name: a, type: embedding, vocab: 24, units: 12}
  - {name: fc, type: dense, units: 24}
  - {name: act, type: tanh}
  - {name: back, type: dense, units: 12}
  - {name: skip, type: add, inputs: [back, a]}
  - {name: d, type: dense, units: 24, share: a, bias: false}
loss: softmax_cross_entropy
optimizer: {type: adam, learning_rate: 0.001}
)"},
                                                      {"attention", R"(
dataset: {type: random, shape: [4, 12], label_dtype: f32, label_shape: [8], batch: 48}
network:
  - {name: a, type: dense, units: 12, inputs: [data]}
  - {name: k, type: dense, units: 12, inputs: [data]}
  - {name: v, type: dense, units: 12, inputs: [data]}
  - {name: scores, type: matmul, inputs: [a, k], transpose_b: true}
  - {name: weights, type: softmax}
  - {name: mixed, type: matmul, inputs: [weights, v]}
  - {name: turned, type: transpose, perm: [0, 2, 1]}
  - {name: mean, type: reduce_mean, dims: [2]}
  - {name: gate, type: sigmoid}
  - {name: gated, type: mul, inputs: [mean, gate]}
  - {name: d, type: dense, units: 8}
loss: mse
optimizer: {type: sgd, learning_rate: 0.1}
)"},
                                                      // Two products in a row make what a stage sends back.
                                                      {"pairs", R"(
dataset: {type: random, shape: [6], dtype: i32, label_shape: [], label_dtype: i32, classes: 12, batch: 48}
network:
  - {name: a, type: embedding, vocab: 24, units: 12}
  - {name: act, type: gelu}
  - {name: scores, type: matmul, inputs: [act, a], transpose_b: true}
  - {name: weights, type: softmax}
  - {name: flat, type: flatten}
  - {name: d, type: dense, units: 12}
loss: softmax_cross_entropy
optimizer: {type: sgd, learning_rate: 0.1}
)"}};

const std::vector<std::string> kLevels = {
    "parallel.optimizer_shard={level: 0}", "parallel.optimizer_shard={level: 1, min_kb: 0}",
    "parallel.optimizer_shard={level: 2, min_kb: 0}", "parallel.optimizer_shard={level: 3, min_kb: 0}"};
const std::vector<std::string> kSchedules = {"parallel.schedule=gpipe", "parallel.schedule=1f1b"};

Job job(const std::string& text, const std::vector<std::string>& overrides) {
  Job j;
  j.spec = parse_job(text, "job.yaml", overrides);
  const DataShapes shapes{j.spec.dataset.shape, j.spec.dataset.label_shape, j.spec.dataset.dtype == "i32",
                          j.spec.dataset.label_dtype == "i32"};
  j.graph = build_graph(j.spec, shapes);
  j.plan = make_plan(j.graph, j.spec, CostModel::cpu());
  return j;
}

std::vector<std::vector<std::string>> product(const std::vector<std::vector<std::string>>& lists) {
  std::vector<std::vector<std::string>> all = {{}};
  for (const auto& list : lists) {
    std::vector<std::vector<std::string>> longer;
    for (const auto& start : all) {
      for (const std::string& entry : list) {
        longer.push_back(start);
        if (!entry.empty()) longer.back().push_back(entry);
      }
    }
    all = std::move(longer);
  }
  return all;
}

}  // namespace trainctl
