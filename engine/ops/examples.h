// Shapes shared by the kernels' examples (KernelDef::example): 4 Mi elements unless stated otherwise, 16 MiB of
// f32. Also checks of shapes that the user gives.
#pragma once

#include <string>

#include "engine/ops/kernel_def.h"

namespace trainctl::example {

using Fill = KernelExample::Fill;
using Input = KernelExample::Input;

inline const int64_t kRows = 4096, kCols = 1024;
inline const Shape kMatrix = {kRows, kCols}, kRow = {kCols}, kColumn = {kRows}, kFlat = {kRows * kCols};

inline Input f32(Shape shape) { return {std::move(shape), Fill::statistics}; }
inline Input ids(Shape shape) { return {std::move(shape), Fill::indices}; }

inline int64_t columns_of_first(Infos in, const Attrs&) { return in[0].shape.back(); }

/// Throws ShapeError with the message unless `holds`.
void expect(bool holds, const std::string& message);
void expect_shape(const TensorInfo& info, const Shape& expected, const char* what);

/// Checks that there are `inputs` inputs, of which the last is [parts, ..of_part]: statistics of all shards
/// (InnerSum::apply).
void expect_parts(Infos in, size_t inputs, const Shape& of_part);

/// The shape without its last dim.
inline Shape leading(const TensorInfo& info) { return Shape(info.shape.begin(), info.shape.end() - 1); }

// Functions for KernelExample::outputs. The first one: one output like the first input.
std::vector<TensorInfo> like_first(Infos in, const Attrs& attrs, DType dtype);
std::vector<TensorInfo> one_number(Infos in, const Attrs& attrs, DType dtype);
/// The outputs of a kernel that computes a loss and its gradient.
std::vector<TensorInfo> loss_and_gradient(Infos in, const Attrs& attrs, DType dtype);
/// The outputs of the update of an optimizer with this number of states besides the weights.
std::vector<TensorInfo> updated(Infos in, int states, DType dtype);

}  // namespace trainctl::example
