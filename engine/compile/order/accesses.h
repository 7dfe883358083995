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

/// Returns the accesses of the inputs, then of the outputs. An output that is added to, or that an optimizer updates,
/// is both read and written; so is an input that an op updates in place.
std::vector<MemoryAccess> accesses(const Instruction& instruction);

}  // namespace trainctl
