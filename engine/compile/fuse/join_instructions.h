// For passes that merge two instructions. The redundant one is only marked, so that indices stay valid during the pass.
#pragma once

#include "engine/compile/compiler.h"

namespace trainctl {

/// Marks the instruction as removed: it stays in the list without operands.
void mark_removed(Compiler& c, size_t at);
/// Removes all marked instructions. Called at the end of a pass.
void remove_marked(Compiler& c);

/// The instruction at `into` also writes the outputs of that at `from`, after its own, and is placed at `place`, which
/// is either of the two; the other is marked.
void join_outputs(Compiler& c, size_t from, size_t into, size_t place);

}  // namespace trainctl
