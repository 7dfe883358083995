// Finds races in global memory within a launch. Warps of a cluster are ordered as in shared memory (shared_checks.h).
// Clusters are ordered only by fences and atomics: a thread that adds to a word after another thread knows everything
// that the other thread had fenced before its own addition.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "tools/cuda_emulator/machine.h"

namespace trainctl::emulator {

/// Records a lane's access to `bytes` bytes of an allocation, and reports any race with earlier ones.
void note_global(Warp& warp, const Instruction& in, int lane, Allocation& allocation, uint64_t address, uint32_t bytes,
                 bool writes);

/// The same for the lanes of a warp, each of which accesses its own address.
void note_global_lanes(Warp& warp, const Instruction& in, uint32_t mask, Allocation& allocation,
                       const uint64_t* addresses, uint32_t bytes, bool writes);

void note_fence(Warp& warp);
/// Merges what this word carries into what the warp knows, and what the warp has fenced into the word.
void note_atomic(Warp& warp, uint64_t address);

}  // namespace trainctl::emulator
