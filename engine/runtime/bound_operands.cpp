// See the header.
#include "engine/runtime/bound_operands.h"

#include <algorithm>

#include "engine/base/error.h"

namespace trainctl {

std::byte* address_of(const Operand& operand, const Program& program, std::byte* arena) {
  check(operand.offset >= 0 && operand.offset + operand.bytes() <= program.arena_bytes,
        "operands are inside the arena");
  return arena + operand.offset;
}

BoundMove bind_move(const Instruction& instruction, const Program& program, std::byte* arena) {
  BoundMove move;
  if (!instruction.inputs.empty()) {
    move.in = address_of(instruction.inputs[0], program, arena);
    move.dtype = instruction.inputs[0].dtype;
    move.count = num_elements(instruction.inputs[0].shape);
  }
  if (!instruction.outputs.empty()) {
    move.out = address_of(instruction.outputs[0], program, arena);
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

void bind_operands(const Instruction& instruction, const Program& program, std::byte* arena, KernelCall& call) {
  const auto arg = [&](const Operand& o) {
    return TensorArg{address_of(o, program, arena), o.dtype, o.shape, o.global_shape, o.global_offset, o.accumulate};
  };
  for (const Operand& operand : instruction.inputs) call.in.push_back(arg(operand));
  for (const Operand& operand : instruction.outputs) call.out.push_back(arg(operand));
  call.attrs = instruction.attrs;
  call.scalars = reinterpret_cast<const StepScalars*>(arena + program.scalars_offset);
  call.micro_batch = std::max(instruction.micro_batch, 0);
}

}  // namespace trainctl
