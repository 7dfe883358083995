// Checks a rank's total memory against the largest possible arena.
#pragma once

#include "engine/compile/compiler.h"

namespace trainctl {

/// Runs once buffers are placed. Throws a SpecError at the layer of the largest tensor if the arena is larger than
/// kMaxArenaBytes (engine/plan/axes/shard_limits.h): its size, the rank, what it consists of, and what would make it
/// smaller.
void require_arena_limit(const Compiler& c);

}  // namespace trainctl
