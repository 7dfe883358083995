// A rank's whole memory against what an arena may be.
#pragma once

#include "engine/compile/compiler.h"

namespace trainctl {

/// Once buffers have places. Throws a SpecError at the layer of the largest tensor where the arena is larger than
/// kMaxArenaBytes (engine/plan/part_limits.h): how large on which rank, what of, and what would make it smaller.
void require_arena_limit(const Compiler& c);

}  // namespace trainctl
