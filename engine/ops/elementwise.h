// What many OpDefs share: letters for n dims, ops whose operands all have one shape, and the checks
// and words of shape errors.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/ops/op_def.h"

namespace trainctl {

using Infos = std::span<const TensorInfo>;

/// The first n letters that are not in `except`: "abc".
std::string letters(size_t n, std::string_view except = "");

/// "[2, 3]", or "[2, 3] i32" where it is not f32.
std::string to_string(const TensorInfo& info);

/// Throws a ShapeError.
[[noreturn]] void shape_error(std::string message);

/// The most elements that a whole tensor may have, over all ranks: its bytes, and those of a few together, fit an
/// int64_t. What one rank may hold of it is the planner's matter (plan/part_limits.h).
inline constexpr int64_t kMaxElements = int64_t{1} << 58;
/// Throws where `shape` has more, or a dim under 1; `name` is the tensor's.
void expect_size(std::string_view name, const Shape& shape);

/// Between `low` and `high` inputs.
void expect_inputs(std::string_view op, Infos inputs, size_t low, size_t high);
/// At least `ndim` dims.
void expect_ndim(std::string_view op, const TensorInfo& input, size_t ndim);
/// Every input is f32, or every one bf16.
void expect_floats(std::string_view op, Infos inputs);
/// `what` of the shape `expected`.
void expect_shape(std::string_view op, std::string_view what, const TensorInfo& info, const Shape& expected);

/// One output like the first input; every input is of that same shape, and all are f32 or all bf16.
std::vector<TensorInfo> infer_elementwise(std::string_view op, Infos inputs, size_t num_inputs);
/// "ab,ab->ab" for as many inputs as there are.
RuleText elementwise_rule(Infos inputs, const Attrs& attrs);

/// Every operand once through memory, and so many operations an element of the first output.
Cost traffic_cost(Infos inputs, Infos outputs, double flops_per_element);

template <int kFlops>
Cost elementwise_cost(Infos inputs, Infos outputs, const Attrs&) {
  return traffic_cost(inputs, outputs, kFlops);
}

/// numpy: aligned at the last dim, 1 goes with anything.
Shape broadcast_shape(std::string_view op, const Shape& a, const Shape& b);
/// "ab,()b->ab".
RuleText broadcast_rule(Infos inputs, const Attrs& attrs);

/// A loss of (prediction, label), both of one shape, summed to [1]: mae, mse. The label is f32 whatever the prediction.
std::vector<TensorInfo> infer_pair_loss(std::string_view op, Infos in);
/// Its gradient: like the prediction.
std::vector<TensorInfo> infer_pair_loss_grad(std::string_view op, Infos in);
RuleText pair_loss_rule(Infos in, const Attrs& attrs);
Cost pair_loss_cost(Infos in, Infos out, const Attrs& attrs);

}  // namespace trainctl
