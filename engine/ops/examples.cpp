// Shapes shared by the kernels' examples (KernelDef::example): 4 Mi elements unless stated otherwise, 16 MiB of f32.
#include "engine/ops/examples.h"

#include <fmt/format.h>

#include "engine/ops/op_def.h"

namespace trainctl::example {

void expect(bool holds, const std::string& message) {
  if (!holds) throw ShapeError(message);
}

void expect_shape(const TensorInfo& info, const Shape& expected, const char* what) {
  expect(info.shape == expected,
         fmt::format("{} is {}, expected {}", what, to_string(info.shape), to_string(expected)));
}

void expect_parts(Infos in, size_t inputs, const Shape& of_part) {
  expect(in.size() == inputs, fmt::format("it expects {} inputs, the last with the statistics of all shards", inputs));
  const Shape& shape = in.back().shape;
  expect(!shape.empty() && shape[0] > 0 && Shape(shape.begin() + 1, shape.end()) == of_part,
         fmt::format("the statistics are {}, expected [shards] and {}", to_string(shape), to_string(of_part)));
}

std::vector<TensorInfo> like_first(Infos in, const Attrs&, DType) { return {in[0]}; }

std::vector<TensorInfo> one_number(Infos, const Attrs&, DType) { return {{{1}}}; }

std::vector<TensorInfo> loss_and_gradient(Infos in, const Attrs&, DType) {
  expect(in.size() == 2, "it expects a prediction and a label");
  return {{{1}}, in[0]};
}

std::vector<TensorInfo> updated(Infos in, int states, DType dtype) {
  for (size_t i = 1; i < in.size(); ++i) {
    expect(num_elements(in[i].shape) == 1, "the second input is the squared norm of all gradients, [1]");
  }
  std::vector<TensorInfo> out(static_cast<size_t>(1 + states), in[0]);
  if (is_half(dtype)) out.push_back({in[0].shape, dtype});
  return out;
}

}  // namespace trainctl::example
