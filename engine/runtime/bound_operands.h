// An instruction's operands as addresses in a rank's arena: what every executor looks up once, while loading.
#pragma once

#include <cstddef>

#include "engine/compile/program.h"
#include "engine/ops/kernel.h"

namespace trainctl {

/// The memory of a rank: its arena, and what it keeps in the memory of the host (kHostOffset).
struct RankMemory {
  std::byte* arena = nullptr;
  std::byte* host = nullptr;

  RankMemory() = default;
  RankMemory(std::byte* of_arena, std::byte* of_host = nullptr) : arena(of_arena), host(of_host) {}
  std::byte* at(int64_t offset) const {
    return is_host_offset(offset) ? host + (offset - kHostOffset) : arena + offset;
  }
};

std::byte* address_of(const Operand& operand, const Program& program, const RankMemory& memory);

/// The addresses of inputs[0] and outputs[0] of an instruction that is not a kernel.
struct BoundMove {
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;  ///< collective: elements, as the Communicator counts them; all others: bytes
  DType dtype = DType::f32;
};
BoundMove bind_move(const Instruction& instruction, const Program& program, const RankMemory& memory);

/// The bytes that the members of a group send each other in an exchange of tokens that moves whole blocks; 0 for all
/// other instructions, and at all members but the first.
int64_t exchanged_block_bytes(const Instruction& instruction, const Program& program);

/// Fills in operands, attributes, scalars and micro-batch of a kernel's call; the device adds the rest.
void bind_operands(const Instruction& instruction, const Program& program, const RankMemory& memory, KernelCall& call);

}  // namespace trainctl
