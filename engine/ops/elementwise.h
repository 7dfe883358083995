// Shared parts of OpDefs whose operands have equal or broadcastable shapes, and the cost of one pass over memory.
#pragma once

#include <string_view>
#include <vector>

#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"

namespace trainctl {

/// One output like the first input. All inputs have the same shape; all are f32, or all bf16.
std::vector<TensorInfo> infer_elementwise(std::string_view op, Infos inputs, size_t num_inputs);
/// The rule in which all operands have the same letters, such as "ab,ab->ab" for two inputs.
RuleText elementwise_rule(Infos inputs, const Attrs& attrs);

/// KernelDef::channels_last of a kernel that treats all elements in the same way, for images of equal or broadcastable
/// shapes.
std::optional<ChannelsLast> elementwise_images(Infos inputs, const Attrs& attrs);

/// KernelDef::channels_last of a kernel that works along attr dim.
std::optional<ChannelsLast> images_along_dim(Infos inputs, const Attrs& attrs);

/// Every operand passes through memory once; `flops_per_element` counts for each element of the first output.
Cost traffic_cost(Infos inputs, Infos outputs, double flops_per_element);

template <int kFlops>
Cost elementwise_cost(Infos inputs, Infos outputs, const Attrs&) {
  return traffic_cost(inputs, outputs, kFlops);
}

/// Like elementwise_cost, but with flops for each element of the first input, as a sum or a loss has.
template <int kFlops>
Cost reduction_cost(Infos inputs, Infos outputs, const Attrs&) {
  Cost cost = traffic_cost(inputs, outputs, 0);
  cost.flops = double{kFlops} * static_cast<double>(num_elements(inputs[0].shape));
  return cost;
}

/// Same as in numpy: shapes are aligned at the last dim, and 1 broadcasts to any size.
Shape broadcast_shape(std::string_view op, const Shape& a, const Shape& b);
/// The rule of a broadcast of any number of inputs, such as "ab,()b->ab".
RuleText broadcast_rule(Infos inputs, const Attrs& attrs);
/// One output of the inputs' broadcast shape. All are f32, or all bf16.
std::vector<TensorInfo> infer_broadcast(std::string_view op, Infos inputs, size_t num_inputs);
/// For a broadcasting op: the gradient of input i is op(inputs), which has the output's shape, summed over the dims
/// over which the input is repeated.
void set_broadcast_grad(GradBuilder& g, int i, std::string_view op, std::vector<TensorId> inputs, Attrs attrs = {});

}  // namespace trainctl
