// Lists which arena bytes an instruction reads and writes.
#include "engine/compile/order/accesses.h"

namespace trainctl {

std::vector<MemoryAccess> accesses(const Instruction& instruction) {
  const KernelDef* kernel = kernel_of(instruction);
  const bool updates = kernel != nullptr && kernel->updates_outputs;
  std::vector<MemoryAccess> list;
  list.reserve(instruction.inputs.size() + instruction.outputs.size());
  for (size_t i = 0; i < instruction.inputs.size(); ++i) {
    list.push_back({&instruction.inputs[i], true, kernel != nullptr && (kernel->updates_input >> i & 1u) != 0});
  }
  for (const Operand& output : instruction.outputs) {
    const bool is_copy = updates && output.dtype != DType::f32;  // a 16-bit copy of the weights, or work space
    list.push_back({&output, (updates && !is_copy) || output.accumulate, true});
  }
  return list;
}

}  // namespace trainctl
