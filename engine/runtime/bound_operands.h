// An instruction's operands as addresses in a rank's arena, wherever that lies: what every executor looks up once.
#pragma once

#include <cstddef>

#include "engine/compile/program.h"
#include "engine/ops/kernel.h"

namespace trainctl {

std::byte* address_of(const Operand& operand, const Program& program, std::byte* arena);

/// inputs[0] and outputs[0] of an instruction that is no kernel.
struct BoundMove {
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;  ///< of a collective elements, as the Communicator counts them; of all others bytes
  DType dtype = DType::f32;
};
BoundMove bind_move(const Instruction& instruction, const Program& program, std::byte* arena);

/// Operands, attributes, scalars and micro-batch of a kernel's call; the rest is the device's.
void bind_operands(const Instruction& instruction, const Program& program, std::byte* arena, KernelCall& call);

}  // namespace trainctl
