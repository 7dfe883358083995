// y = a + b with numpy broadcasting.
#include "engine/ops/cpu/broadcast_cpu.h"
#include "engine/ops/elementwise/spans_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {

void cpu::add_span(const float* a, const float* b, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

namespace {

CpuKernel prepare_add(const KernelCall& call) {
  return cpu::broadcast_map(call, [](float a, float b) { return a + b; });
}

}  // namespace

extern const CpuKernels add_cpu = {{"add", prepare_add}};

}  // namespace trainctl
