// Every op. Adding one: its folder, and a name here (docs/ops.md).
#include <fmt/format.h>

#include <map>

#include "engine/base/error.h"
#include "engine/ops/op_def.h"

namespace trainctl {

extern const OpDef reshape_op, transpose_op;
extern const OpDef matmul_op, matmul_weight_grad_op, add_bias_op, bias_grad_op;
extern const OpDef add_op, mul_op, sum_to_op, reduce_sum_op, broadcast_to_op;
extern const OpDef relu_op, relu_grad_op, gelu_op, gelu_grad_op, sigmoid_op, sigmoid_grad_op, tanh_op, tanh_grad_op;
extern const OpDef softmax_op, softmax_grad_op, dropout_op;
extern const OpDef batch_norm_mean_op, batch_norm_var_op, batch_norm_running_op, batch_norm_op;
extern const OpDef batch_norm_grad_stats_op, batch_norm_grad_op;
extern const OpDef layer_norm_op, layer_norm_grad_op, layer_norm_param_grad_op;
extern const OpDef embedding_op, embedding_grad_op;
extern const OpDef mae_op, mae_grad_op, mse_op, mse_grad_op;
extern const OpDef softmax_cross_entropy_op, softmax_cross_entropy_grad_op;
extern const OpDef all_reduce_op, all_gather_op, reduce_scatter_op, all_to_all_op, broadcast_op, reduce_op;

namespace {

const OpDef* const kOps[] = {
    &reshape_op,
    &transpose_op,
    &matmul_op,
    &matmul_weight_grad_op,
    &add_bias_op,
    &bias_grad_op,
    &add_op,
    &mul_op,
    &sum_to_op,
    &reduce_sum_op,
    &broadcast_to_op,
    &relu_op,
    &relu_grad_op,
    &gelu_op,
    &gelu_grad_op,
    &sigmoid_op,
    &sigmoid_grad_op,
    &tanh_op,
    &tanh_grad_op,
    &softmax_op,
    &softmax_grad_op,
    &dropout_op,
    &batch_norm_mean_op,
    &batch_norm_var_op,
    &batch_norm_running_op,
    &batch_norm_op,
    &batch_norm_grad_stats_op,
    &batch_norm_grad_op,
    &layer_norm_op,
    &layer_norm_grad_op,
    &layer_norm_param_grad_op,
    &embedding_op,
    &embedding_grad_op,
    &mae_op,
    &mae_grad_op,
    &mse_op,
    &mse_grad_op,
    &softmax_cross_entropy_op,
    &softmax_cross_entropy_grad_op,
    &all_reduce_op,
    &all_gather_op,
    &reduce_scatter_op,
    &all_to_all_op,
    &broadcast_op,
    &reduce_op,
};

}  // namespace

std::span<const OpDef* const> all_ops() { return kOps; }

const OpDef* find_op(std::string_view name) {
  static const auto by_name = [] {
    std::map<std::string_view, const OpDef*> ops;
    for (const OpDef* op : kOps) check(ops.emplace(op->name, op).second, "two ops have one name");
    return ops;
  }();
  const auto it = by_name.find(name);
  return it == by_name.end() ? nullptr : it->second;
}

const OpDef& get_op(std::string_view name) {
  const OpDef* op = find_op(name);
  if (op == nullptr) check(false, fmt::format("there is no op '{}' in the list of all_ops.cpp", name));
  return *op;
}

}  // namespace trainctl
