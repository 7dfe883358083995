// Initial values of parameters and states: each element depends only on (seed, tensor name, global element index),
// so a rank computes just its slice and no layout changes a value.
//
//   i       row-major index in the global shape;  key = stream_key(seed, stable_hash(name))
//   uniform b * (2u - 1),  u = word i of the stream, as philox_uniform(key, i, 0)
//   row_norms  1; the norms need the other parameter's values, so train/checkpoint/initial_norms.h writes them
//   normal  sd * sqrt(-2 ln u1) * cos(2 pi u2), sin for odd i; u1 in (0, 1], u2 from words i & ~1, i | 1
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/compile/program.h"
#include "engine/runtime/stored_ranges.h"

namespace trainctl {

/// Elements [first, first + count) of the whole tensor `name`.
void initial_values(std::string_view name, const Init& init, uint64_t seed, int64_t first, int64_t count, float* out);

/// Elements [first, first + count) of this rank's part of `variable`, row-major in the part.
void initial_values(const Variable& variable, uint64_t seed, int64_t first, int64_t count, float* out);

/// False for an optimizer's states, which begin at 0, as the arena does, and for packed weights, which are loaded.
inline bool has_initial_values(const StoredRange& range) {
  return (range.slot == kWeightSlot || range.slot == kStateSlot) && !has_blocks(range.variable->packing);
}

/// Writes them all into the arena, which is zeroed.
void write_initial_weights(const Program& program, uint64_t seed, std::byte* arena);

}  // namespace trainctl
