// A program between two passes: how large it is, and what it says. For people: `trainctl show program --after NAME`
// and `--passes`.
#pragma once

#include <string>

#include "engine/compile/compiler.h"

namespace trainctl {

struct ProgramSize {
  size_t instructions = 0;
  /// Before place_buffers the buffers that are in use, each by itself; from then on the arena, where they share bytes.
  int64_t bytes = 0;
};
ProgramSize size_so_far(const Compiler& c);

/// As to_string(Program). Where buffers have no place yet, an operand is at "b12@0+4096": buffer, offset in that
/// buffer, bytes. Before order_streams an instruction has no stream ("-") and no waits but those for sends.
std::string to_string(const Compiler& c);

}  // namespace trainctl
