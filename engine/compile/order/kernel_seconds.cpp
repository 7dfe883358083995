// Estimates how long the kernels of a program take, as exactly as passes need to know.
#include "engine/compile/order/kernel_seconds.h"

namespace trainctl {

Seconds kernel_seconds(const Machine& machine, const Instruction& code) {
  const KernelDef* kernel = kernel_of(code);
  if (kernel == nullptr || code.idle) return {};
  std::vector<TensorInfo> inputs, outputs;
  for (const Operand& o : code.inputs) inputs.push_back({o.shape, o.dtype});
  for (const Operand& o : code.outputs) outputs.push_back({o.shape, o.dtype});
  return kernel_time(machine, *kernel, inputs, outputs, code.attrs);
}

}  // namespace trainctl
