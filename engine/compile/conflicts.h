// Which instructions may change places: what the passes that move them ask, before buffers have offsets.
#pragma once

#include "engine/compile/compiler.h"

namespace trainctl {

/// Whether operands of both, read or written, share a byte.
bool touch_the_same(const VirtualInstruction& a, const VirtualInstruction& b);

/// Whether they would give something else in the other order, or at the same time: one writes what the other touches.
bool conflict(const VirtualInstruction& a, const VirtualInstruction& b);

/// Whether `v`, which stands at one of two places, conflicts with nothing between them.
bool can_move(const Compiler& c, const VirtualInstruction& v, size_t from, size_t to);

/// Takes the instruction at `from` to the place `to`; those between move up or down by one.
void move_instruction(Compiler& c, size_t from, size_t to);

}  // namespace trainctl
