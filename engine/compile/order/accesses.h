// Determines which arena bytes an instruction reads and writes.
#pragma once

#include <vector>

#include "engine/compile/program.h"

namespace trainctl {

struct MemoryAccess {
  const Operand* operand = nullptr;
  bool reads = false, writes = false;

  int64_t begin() const { return operand->offset; }
  int64_t end() const { return operand->offset + operand->bytes(); }
};

/// Inputs, then outputs. Outputs that are added to and values that an optimizer updates count as reads too; inputs
/// that an op updates in place count as writes too.
std::vector<MemoryAccess> accesses(const Instruction& instruction);

}  // namespace trainctl
