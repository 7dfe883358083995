// Determines which instructions may be reordered, for the passes that move them before buffers have offsets.
#pragma once

#include "engine/compile/compiler.h"

namespace trainctl {

/// True if the buffer is one of an instruction's inputs or outputs.
bool names(const std::vector<BufferId>& buffers, BufferId buffer);

/// True if any operands of the two, read or written, share a byte.
bool touch_the_same(const VirtualInstruction& a, const VirtualInstruction& b);

/// True if reordering them or running them in parallel could change a result: one writes what the other touches.
bool conflict(const VirtualInstruction& a, const VirtualInstruction& b);

/// True if `v`, located at `from` or `to`, conflicts with no instruction between them.
bool can_move(const Compiler& c, const VirtualInstruction& v, size_t from, size_t to);

/// Moves the instruction at `from` to `to`; those between shift by one.
void move_instruction(Compiler& c, size_t from, size_t to);

}  // namespace trainctl
