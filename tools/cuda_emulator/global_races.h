// Races in global memory within a launch: between warps of a cluster as in shared memory, and between clusters, which
// order what they do only by fences and atomics: who adds to a word after another did knows what that one had fenced
// off before.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "tools/cuda_emulator/machine.h"

namespace trainctl::emulator {

/// Notes an access of a lane to so many bytes of an allocation, and reports what it races with.
void note_global(Warp& warp, const Instruction& in, int lane, Allocation& allocation, uint64_t address, uint32_t bytes,
                 bool writes);

void note_fence(Warp& warp);
/// What is known to who adds to this word from now on, and what this warp knows now.
void note_atomic(Warp& warp, uint64_t address);

}  // namespace trainctl::emulator
