// Checks on the inputs of an op or a layer, and the texts of its shape errors.
#pragma once

#include <string>
#include <string_view>

#include "engine/ops/op_def.h"

namespace trainctl {

/// The first n letters that are not in `except`: "abc". Throws a ShapeError if there are too few.
std::string letters(size_t n, std::string_view except = "");

/// "[2, 3]", or "[2, 3] i32" if it is not f32.
std::string to_string(const TensorInfo& info);

/// Throws a ShapeError.
[[noreturn]] void shape_error(std::string message);

/// The most elements that a whole tensor may have, over all ranks: its bytes, and those of a few such tensors
/// together, fit an int64_t. The planner limits the part on one rank (plan/axes/shard_limits.h).
inline constexpr int64_t kMaxElements = int64_t{1} << 58;
/// Throws if `shape` has more elements or a dim less than 1; `name` is the tensor's.
void expect_size(std::string_view name, const Shape& shape);

/// Throws unless there are between `low` and `high` inputs.
void expect_inputs(std::string_view op, Infos inputs, size_t low, size_t high);
/// Throws unless the input has at least `ndim` dims.
void expect_ndim(std::string_view op, const TensorInfo& input, size_t ndim);
/// Throws unless all inputs are f32, or all are bf16.
void expect_floats(std::string_view op, Infos inputs);
/// Throws unless the input has the shape `expected`. `what`: its name in the error.
void expect_shape(std::string_view op, std::string_view what, const TensorInfo& info, const Shape& expected);

}  // namespace trainctl
