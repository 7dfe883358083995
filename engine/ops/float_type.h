// The float type of an output that no input determines: f32, or the 16-bit type that an attr names.
#pragma once

#include <string>

#include "engine/base/attrs.h"
#include "engine/graph/dtype.h"

namespace trainctl {

inline void set_float_type(DType type, Attrs& attrs) {
  if (is_half(type)) attrs.set(std::string(to_string(type)), true);
}

inline DType float_type_of(const Attrs& attrs) {
  return attrs.flag("bf16") ? DType::bf16 : attrs.flag("f16") ? DType::f16 : DType::f32;
}

}  // namespace trainctl
