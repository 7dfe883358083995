// y = tanh x.  dx = dy * (1 - y^2).
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/elementwise/span_kernels_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {

void cpu::tanh_span(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = cpu::tanh(x[i]);
}

void cpu::tanh_grad_span(const float* dy, const float* y, float* dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * (1.0f - y[i] * y[i]);
}

namespace {

CpuKernel prepare_tanh(const KernelCall& call) { return cpu::over_all(call, cpu::tanh_span); }
CpuKernel prepare_tanh_grad(const KernelCall& call) { return cpu::over_all(call, cpu::tanh_grad_span); }

}  // namespace

extern const CpuKernels tanh_cpu = {{"tanh", prepare_tanh}, {"tanh_grad", prepare_tanh_grad}};

}  // namespace trainctl
