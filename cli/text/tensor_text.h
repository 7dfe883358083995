// Tensors as numpy prints them: [[1. 1.]
//                                [0.5 2. ]]
#pragma once

#include <string>

#include "engine/graph/dtype.h"
#include "engine/graph/shape.h"

namespace trainctl {

/// Rows after the first are indented by `indent` spaces. More than 1000 elements are shortened to the
/// first and last three of each dim.
std::string tensor_text(const void* data, const Shape& shape, DType dtype, int indent = 0);

}  // namespace trainctl
