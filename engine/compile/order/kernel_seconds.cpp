// Estimates how long the kernels of a program take, as exactly as passes need to know.
#include "engine/compile/order/kernel_seconds.h"

namespace trainctl {

Seconds kernel_seconds(const Machine& machine, const Instruction& code) {
  const KernelDef* kernel = kernel_of(code);
  if (kernel == nullptr || code.idle) return {};
  return kernel_time(machine, *kernel, infos_of(code.inputs), infos_of(code.outputs), code.attrs);
}

}  // namespace trainctl
