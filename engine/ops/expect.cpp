// Checks on the inputs of an op or a layer; see expect.h.
#include "engine/ops/expect.h"

#include <fmt/format.h>

namespace trainctl {

std::string letters(size_t n, std::string_view except) {
  constexpr std::string_view all = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string text;
  for (char letter : all) {
    if (text.size() == n) return text;
    if (except.find(letter) == std::string_view::npos) text += letter;
  }
  if (text.size() < n) shape_error(fmt::format("a tensor has too many dims ({} letters are needed)", n));
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
    if (dim < 1)
      shape_error(fmt::format("{} would have shape {}: every dim must be at least 1", name, to_string(shape)));
    left /= dim;
  }
  if (left == 0) {
    shape_error(fmt::format("{} would have shape {}: a tensor can have at most {} elements", name, to_string(shape),
                            kMaxElements));
  }
}

void expect_inputs(std::string_view op, Infos inputs, size_t low, size_t high) {
  if (inputs.size() >= low && inputs.size() <= high) return;
  const std::string wanted = low == high ? std::to_string(low) : fmt::format("{} to {}", low, high);
  shape_error(fmt::format("{} takes {} input{}, but got {}", op, wanted, high == 1 ? "" : "s", inputs.size()));
}

void expect_ndim(std::string_view op, const TensorInfo& input, size_t ndim) {
  if (input.shape.size() >= ndim) return;
  shape_error(fmt::format("{} needs an input of at least {} dims, but got {}", op, ndim, to_string(input)));
}

void expect_floats(std::string_view op, Infos inputs) {
  for (const TensorInfo& input : inputs) {
    if (input.dtype == DType::i32) shape_error(fmt::format("{} expects f32, but got {}", op, to_string(input)));
    if (input.dtype == inputs[0].dtype) continue;
    shape_error(fmt::format("{} expects inputs of the same type, but got {} {} and {} {}", op,
                            to_string(inputs[0].shape), to_string(inputs[0].dtype), to_string(input.shape),
                            to_string(input.dtype)));
  }
}

void expect_shape(std::string_view op, std::string_view what, const TensorInfo& info, const Shape& expected) {
  if (info.shape == expected) return;
  shape_error(fmt::format("{}: {} is {}, expected {}", op, what, to_string(info), to_string(expected)));
}

}  // namespace trainctl
