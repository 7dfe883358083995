// A program between two passes: its size and its text. Used by `trainctl show program --after NAME` and `--passes`.
#pragma once

#include <string>

#include "engine/compile/compiler.h"

namespace trainctl {

struct ProgramSize {
  size_t instructions = 0;
  /// Before place_buffers: the sum of all buffers in use. From then on: the arena, in which they share bytes.
  int64_t bytes = 0;
};
ProgramSize size_so_far(const Compiler& c);

/// Same as to_string(Program). Before buffers are placed, an operand's place reads "b12@0+4096": buffer, offset in
/// that buffer, bytes. Before order_streams an instruction has no stream ("-") and only the waits for sends.
std::string to_string(const Compiler& c);

}  // namespace trainctl
