// y = max(x, 0), keeps NaN.  dx = dy where y > 0.
#include "engine/ops/elementwise/span_kernels_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {

void cpu::relu_span(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] < 0.0f ? 0.0f : x[i];
}

void cpu::relu_grad_span(const float* dy, const float* y, float* dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float slope = dy[i];  // read unconditionally: a conditional load is not vectorised
    dx[i] = y[i] > 0.0f ? slope : 0.0f;
  }
}

namespace {

CpuKernel prepare_relu(const KernelCall& call) { return cpu::over_all(call, cpu::relu_span); }
CpuKernel prepare_relu_grad(const KernelCall& call) { return cpu::over_all(call, cpu::relu_grad_span); }

}  // namespace

extern const CpuKernels relu_cpu = {{"relu", prepare_relu}, {"relu_grad", prepare_relu_grad}};

}  // namespace trainctl
