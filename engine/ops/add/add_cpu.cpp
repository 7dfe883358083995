// y = a + b with numpy broadcasting.
#include "engine/ops/cpu_broadcast.h"
#include "engine/ops/cpu_kernels.h"

namespace trainctl {

CpuKernel prepare_add(const KernelCall& call) {
  return cpu::broadcast_map(call, [](float a, float b) { return a + b; });
}

}  // namespace trainctl
