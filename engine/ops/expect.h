// What an op or a layer expects of its inputs, and the words of its shape errors.
#pragma once

#include <string>
#include <string_view>

#include "engine/ops/op_def.h"

namespace trainctl {

/// The first n letters that are not in `except`: "abc". Throws a ShapeError where there are not as many.
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

}  // namespace trainctl
