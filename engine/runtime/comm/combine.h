// The inner loop of every collective: sum some buffers (or copy one) into others.
#pragma once

#include <cstdint>
#include <span>

#include "engine/graph/dtype.h"

namespace trainctl::comm {

/// Writes to each of `to` the sum of `from`, element by element, in the order of `from`: f32 and bf16 in f32
/// (bf16 is rounded once, at the end), i32 modulo 2^32. With one source it copies the bits. A destination
/// either is one of the sources or overlaps none of them.
void combine(std::span<const std::byte* const> from, std::span<std::byte* const> to, int64_t count, DType dtype);

}  // namespace trainctl::comm
