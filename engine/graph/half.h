// Arrays of 16-bit floats, bf16 or f16, from and to f32.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/base/error.h"
#include "engine/graph/bf16.h"
#include "engine/graph/dtype.h"
#include "engine/graph/f16.h"

namespace trainctl {

inline void halves_to_floats(DType type, const uint16_t* halves, int64_t count, float* floats) {
  check(is_half(type), "a 16-bit float is bf16 or f16");
  if (type == DType::bf16)
    std::transform(halves, halves + count, floats, from_bf16);
  else
    std::transform(halves, halves + count, floats, from_f16);
}

/// Converts `count` f32 numbers to bf16 or f16. Rounds to nearest, ties to even.
inline void floats_to_halves(DType type, const float* floats, int64_t count, uint16_t* halves) {
  check(is_half(type), "a 16-bit float is bf16 or f16");
  if (type == DType::bf16)
    std::transform(floats, floats + count, halves, to_bf16);
  else
    std::transform(floats, floats + count, halves, to_f16);
}

}  // namespace trainctl
