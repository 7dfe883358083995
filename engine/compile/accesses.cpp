#include "engine/compile/accesses.h"

#include "engine/ops/op_def.h"
#include "engine/ops/optimizer_def.h"

namespace trainctl {

std::vector<Access> accesses(const Instruction& instruction) {
  const bool kernel = instruction.opcode == Opcode::kernel;
  const OpDef* op = kernel ? find_op(instruction.op) : nullptr;
  const bool updates = kernel && is_update_kernel(instruction.op);
  std::vector<Access> list;
  list.reserve(instruction.inputs.size() + instruction.outputs.size());
  for (size_t i = 0; i < instruction.inputs.size(); ++i) {
    list.push_back({&instruction.inputs[i], true, op != nullptr && (op->updates_input >> i & 1u) != 0});
  }
  for (const Operand& output : instruction.outputs) {
    const bool is_copy = updates && output.dtype == DType::bf16;
    list.push_back({&output, (updates && !is_copy) || output.accumulate, true});
  }
  return list;
}

}  // namespace trainctl
