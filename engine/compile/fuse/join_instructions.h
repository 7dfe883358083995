// For passes that make one instruction of two. What is left over is only marked, so that indices stay valid during the
// pass.
#pragma once

#include "engine/compile/compiler.h"

namespace trainctl {

/// The instruction loses its operands.
void mark_removed(Compiler& c, size_t at);
/// At the end of the pass.
void remove_marked(Compiler& c);

/// The instruction at `into` also writes the outputs of that at `from`, after its own, and stands at `place`, which is
/// either; the other is marked.
void join_outputs(Compiler& c, size_t from, size_t into, size_t place);

}  // namespace trainctl
