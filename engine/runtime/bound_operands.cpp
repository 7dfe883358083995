// An instruction's operands as addresses in a rank's arena: what every executor looks up once, while loading.
#include "engine/runtime/bound_operands.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/graph/counted_rows.h"
#include "engine/graph/exchanged_bytes.h"

namespace trainctl {

std::byte* address_of(const Operand& operand, const Program& program, const RankMemory& memory) {
  const bool is_host = is_host_offset(operand.offset);
  const int64_t end = is_host ? kHostOffset + program.memory.host : program.arena_bytes;
  check(operand.offset >= 0 && operand.offset + operand.bytes() <= end, "operands are inside the arena");
  check(!is_host || memory.host != nullptr, "an operand is in the memory of the host, of which this device has none");
  return memory.at(operand.offset);
}

/// The addresses and the count of a collective, message or copy. The count is in elements per block of a collective,
/// otherwise in bytes.
BoundMove bind_move(const Instruction& instruction, const Program& program, const RankMemory& memory) {
  BoundMove move;
  if (!instruction.inputs.empty()) {
    move.in = address_of(instruction.inputs[0], program, memory);
    move.dtype = instruction.inputs[0].dtype;
    move.count = num_elements(instruction.inputs[0].shape);
  }
  if (!instruction.outputs.empty()) {
    move.out = address_of(instruction.outputs[0], program, memory);
    move.dtype = instruction.outputs[0].dtype;
    if (instruction.inputs.empty()) move.count = num_elements(instruction.outputs[0].shape);
  }
  if (instruction.opcode != Opcode::collective) {
    move.count *= byte_size(move.dtype);
    return move;
  }
  const auto size = static_cast<int64_t>(program.groups.at(static_cast<size_t>(instruction.group)).size());
  if (instruction.collective == Collective::reduce_scatter || instruction.collective == Collective::all_to_all) {
    check(move.count % size == 0, "every member's block of a collective has the same size");
    move.count /= size;
  }
  return move;
}

int64_t exchanged_block_bytes(const Instruction& instruction, const Program& program) {
  if (!instruction.attrs.has(kExpectedShare) || instruction.attrs.has(kRowElements)) return 0;
  const std::vector<int>& ranks = program.groups.at(static_cast<size_t>(instruction.group));
  if (ranks.front() != program.rank) return 0;
  const auto members = static_cast<int>(ranks.size());
  const Operand& blocks = instruction.inputs.at(0);
  return exchanged_bytes(Collective::all_to_all, members, num_elements(blocks.shape) / members, blocks.dtype);
}

void bind_operands(const Instruction& instruction, const Program& program, const RankMemory& memory, KernelCall& call) {
  const auto arg = [&](const Operand& o) {
    return TensorArg{address_of(o, program, memory), o.dtype, o.shape, o.global_shape, o.global_offset, o.accumulate};
  };
  for (const Operand& operand : instruction.inputs) call.in.push_back(arg(operand));
  for (const Operand& operand : instruction.outputs) call.out.push_back(arg(operand));
  call.attrs = instruction.attrs;
  call.scalars = reinterpret_cast<const StepScalars*>(memory.at(program.scalars_offset));
  call.micro_batch = std::max(instruction.micro_batch, 0);
}

}  // namespace trainctl
