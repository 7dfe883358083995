// Converts elements of samples from the type that the set has to the type in which a device loads them.
#pragma once

#include <cstdint>

#include "engine/graph/dtype.h"
#include "engine/train/data/source.h"

namespace trainctl {

/// Returns whether an element has the same bits in both types.
constexpr bool is_same(ElementType from, DType to) {
  return (from == ElementType::f32 && to == DType::f32) || (from == ElementType::i32 && to == DType::i32) ||
         (from == ElementType::bf16 && to == DType::bf16);
}

/// Converts elements. Integers become floats by rounding to nearest; f32 becomes bf16 or f16 in the same way; floats
/// become i32 by rounding towards zero. Throws EnvError for an i64 that does not fit an i32.
void convert_elements(const void* from, ElementType from_type, int64_t count, DType to_type, void* to);

}  // namespace trainctl
