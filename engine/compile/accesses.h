// What an instruction reads and writes of the arena.
#pragma once

#include <vector>

#include "engine/compile/program.h"

namespace trainctl {

struct Access {
  const Operand* operand = nullptr;
  bool reads = false, writes = false;

  int64_t begin() const { return operand->offset; }
  int64_t end() const { return operand->offset + operand->bytes(); }
};

/// Inputs, then outputs. Reads too: outputs that are added to, and what an optimizer updates. Writes too:
/// inputs that an op updates in place.
std::vector<Access> accesses(const Instruction& instruction);

}  // namespace trainctl
