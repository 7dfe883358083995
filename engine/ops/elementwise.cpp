// Shared parts of element-wise OpDefs; see elementwise.h.
#include "engine/ops/elementwise.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/graph/format.h"

namespace trainctl {

std::vector<TensorInfo> infer_elementwise(std::string_view op, Infos inputs, size_t num_inputs) {
  expect_inputs(op, inputs, num_inputs, num_inputs);
  expect_floats(op, inputs);
  for (size_t i = 1; i < inputs.size(); ++i) {
    expect_shape(op, fmt::format("input {}", i), inputs[i], inputs[0].shape);
  }
  return {inputs[0]};
}

RuleText elementwise_rule(Infos inputs, const Attrs&) {
  const std::string dims = letters(inputs[0].shape.size());
  std::string text = dims;
  for (size_t i = 1; i < inputs.size(); ++i) text += "," + dims;
  return {text + "->" + dims};
}

std::optional<ChannelsLast> elementwise_images(Infos inputs, const Attrs& attrs) {
  for (const TensorInfo& input : inputs)
    if (input.shape.size() != 4) return {};
  return ChannelsLast{attrs, ~0u, ~0u};
}

std::optional<ChannelsLast> images_along_dim(Infos inputs, const Attrs& attrs) {
  std::optional<ChannelsLast> form = elementwise_images(inputs, attrs);
  if (form) form->attrs.set("dim", int64_t{stored_dim(static_cast<int>(attrs.integer("dim")), Format::channels_last)});
  return form;
}

Cost traffic_cost(Infos inputs, Infos outputs, double flops_per_element) {
  Cost cost;
  for (const TensorInfo& t : inputs) cost.bytes += static_cast<double>(num_elements(t.shape) * byte_size(t.dtype));
  for (const TensorInfo& t : outputs) cost.bytes += static_cast<double>(num_elements(t.shape) * byte_size(t.dtype));
  if (!outputs.empty()) cost.flops = flops_per_element * static_cast<double>(num_elements(outputs[0].shape));
  return cost;
}

Shape broadcast_shape(std::string_view op, const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()), 1);
  for (size_t i = 1; i <= out.size(); ++i) {
    const int64_t da = i <= a.size() ? a[a.size() - i] : 1;
    const int64_t db = i <= b.size() ? b[b.size() - i] : 1;
    if (da != db && da != 1 && db != 1) {
      shape_error(fmt::format("{}: shapes {} and {} cannot be broadcast: {} and {} differ in dim {} from the last", op,
                              to_string(a), to_string(b), da, db, i));
    }
    out[out.size() - i] = std::max(da, db);
  }
  return out;
}

namespace {

Shape shape_of_all(std::string_view op, Infos inputs) {
  Shape shape = inputs[0].shape;
  for (const TensorInfo& input : inputs.subspan(1)) shape = broadcast_shape(op, shape, input.shape);
  return shape;
}

}  // namespace

std::vector<TensorInfo> infer_broadcast(std::string_view op, Infos inputs, size_t num_inputs) {
  expect_inputs(op, inputs, num_inputs, num_inputs);
  expect_floats(op, inputs);
  return {{shape_of_all(op, inputs), inputs[0].dtype}};
}

void set_broadcast_grad(GradBuilder& g, int i, std::string_view op, std::vector<TensorId> inputs, Attrs attrs) {
  if (!g.needs_in_grad(i)) return;
  const Shape shape = g.shape(g.in(i));
  if (shape == g.shape(g.out())) return g.set_in_grad(i, op, std::move(inputs), std::move(attrs));
  const std::string suffix = fmt::format("product{}", i);
  const auto whole = g.emit(op, std::move(inputs), std::move(attrs), {g.out()}, suffix);
  Attrs of_sum{{"shape", shape}};
  if (g.is_parameter(g.in(i)) && g.dtype(whole[0]) != DType::f32) of_sum.set("f32", true);
  g.set_in_grad(i, "sum_to", whole, std::move(of_sum));
}

RuleText broadcast_rule(Infos inputs, const Attrs&) {
  const Shape out = shape_of_all("broadcast", inputs);
  const std::string dims = letters(out.size());
  std::string text;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i > 0) text += ',';
    const Shape& shape = inputs[i].shape;
    const size_t skipped = out.size() - shape.size();
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == out[skipped + d]) {
        text += dims[skipped + d];
      } else {
        text += "()";
      }
    }
  }
  return {text + "->" + dims};
}

}  // namespace trainctl
