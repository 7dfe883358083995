// Shared parts of OpDefs; see elementwise.h.
#include "engine/ops/elementwise.h"

#include <fmt/format.h>

#include <algorithm>

namespace trainctl {

std::string letters(size_t n, std::string_view except) {
  constexpr std::string_view all = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string text;
  for (char letter : all) {
    if (text.size() == n) return text;
    if (except.find(letter) == std::string_view::npos) text += letter;
  }
  if (text.size() < n) shape_error(fmt::format("a tensor has too many dims ({} are asked for)", n));
  return text;
}

std::string to_string(const TensorInfo& info) {
  std::string text = to_string(info.shape);
  if (info.dtype != DType::f32) text += fmt::format(" {}", to_string(info.dtype));
  return text;
}

void shape_error(std::string message) { throw ShapeError(std::move(message)); }

void expect_size(std::string_view name, const Shape& shape) {
  int64_t left = kMaxElements;
  for (int64_t dim : shape) {
    if (dim < 1) shape_error(fmt::format("{} would be {}: every dim must be at least 1", name, to_string(shape)));
    left /= dim;
  }
  if (left == 0) {
    shape_error(fmt::format("{} would be {}: a tensor has at most {} elements", name, to_string(shape), kMaxElements));
  }
}

void expect_inputs(std::string_view op, Infos inputs, size_t low, size_t high) {
  if (inputs.size() >= low && inputs.size() <= high) return;
  const std::string wanted = low == high ? std::to_string(low) : fmt::format("{} to {}", low, high);
  shape_error(fmt::format("{} takes {} input{}, it is given {}", op, wanted, high == 1 ? "" : "s", inputs.size()));
}

void expect_ndim(std::string_view op, const TensorInfo& input, size_t ndim) {
  if (input.shape.size() >= ndim) return;
  shape_error(fmt::format("{} needs an input of at least {} dims, it is given {}", op, ndim, to_string(input)));
}

void expect_floats(std::string_view op, Infos inputs) {
  for (const TensorInfo& input : inputs) {
    if (input.dtype == DType::i32) shape_error(fmt::format("{} takes f32, it is given {}", op, to_string(input)));
    if (input.dtype == inputs[0].dtype) continue;
    shape_error(fmt::format("{} takes inputs of one type, it is given {} {} and {} {}", op, to_string(inputs[0].shape),
                            to_string(inputs[0].dtype), to_string(input.shape), to_string(input.dtype)));
  }
}

void expect_shape(std::string_view op, std::string_view what, const TensorInfo& info, const Shape& expected) {
  if (info.shape == expected) return;
  shape_error(fmt::format("{}: {} is {}, {} was expected", op, what, to_string(info), to_string(expected)));
}

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
      shape_error(fmt::format("{}: shapes {} and {} do not broadcast: {} and {} meet at dim {} from the last", op,
                              to_string(a), to_string(b), da, db, i));
    }
    out[out.size() - i] = std::max(da, db);
  }
  return out;
}

RuleText broadcast_rule(Infos inputs, const Attrs&) {
  const Shape out = broadcast_shape("broadcast", inputs[0].shape, inputs[1].shape);
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

std::vector<TensorInfo> infer_pair_loss(std::string_view op, Infos in) {
  infer_pair_loss_grad(op, in);
  return {{{1}}};
}

std::vector<TensorInfo> infer_pair_loss_grad(std::string_view op, Infos in) {
  expect_inputs(op, in, 2, 2);
  for (const TensorInfo& input : in) expect_floats(op, {&input, 1});
  expect_shape(op, "input 1", in[1], in[0].shape);
  return {in[0]};
}

RuleText pair_loss_rule(Infos in, const Attrs&) {
  const std::string dims = letters(in[0].shape.size());
  return {dims + "," + dims + "->()"};
}

Cost pair_loss_cost(Infos in, Infos out, const Attrs&) {
  Cost cost = traffic_cost(in, out, 0);
  cost.flops = 3.0 * static_cast<double>(num_elements(in[0].shape));
  return cost;
}

}  // namespace trainctl
