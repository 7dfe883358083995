// Elements of samples from the type in which a set has them to the type in which a device loads them.
#pragma once

#include <cstdint>

#include "engine/graph/dtype.h"
#include "engine/train/data/source.h"

namespace trainctl {

/// Returns whether elements of both types are the same bits.
constexpr bool is_same(ElementType from, DType to) {
  return (from == ElementType::f32 && to == DType::f32) || (from == ElementType::i32 && to == DType::i32) ||
         (from == ElementType::bf16 && to == DType::bf16);
}

/// Integers become floats by rounding to nearest, f32 becomes bf16 or f16 in the same way, and floats become i32
/// towards zero. Throws EnvError for an i64 that no i32 holds.
void convert_elements(const void* from, ElementType from_type, int64_t count, DType to_type, void* to);

}  // namespace trainctl
