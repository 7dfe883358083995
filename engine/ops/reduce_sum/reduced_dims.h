// Attrs dims and keep_dims of reductions: the shapes, rules and fields that all of them share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/ops/layer_def.h"
#include "engine/ops/op_def.h"

namespace trainctl {

/// The shape after the reduction; [1] if no dim is left.
Shape reduced_shape(const Shape& shape, const Ints& dims, bool keep_dims);

/// One float output; throws a ShapeError unless dims are different dims of the input.
std::vector<TensorInfo> infer_reduction(std::string_view op, Infos in, const Attrs& attrs);
/// The rule of the reduction, such as "abc->ac".
std::string reduction_rule(Infos in, const Attrs& attrs);
/// The letters that only the input has: "b".
std::string reduced_letters(Infos in, const Attrs& attrs);

std::vector<Field> reduction_fields();
/// The layer's field dims, counted from the first.
Ints reduced_dims(const LayerContext& layer);

}  // namespace trainctl
