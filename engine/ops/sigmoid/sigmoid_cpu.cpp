// y = 1 / (1 + e^-x).  dx = dy * y * (1 - y).
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/elementwise/span_kernels_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {

void cpu::sigmoid_span(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = cpu::sigmoid(x[i]);
}

void cpu::sigmoid_grad_span(const float* dy, const float* y, float* dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * (y[i] * (1.0f - y[i]));
}

namespace {

CpuKernel prepare_sigmoid(const KernelCall& call) { return cpu::over_all(call, cpu::sigmoid_span); }
CpuKernel prepare_sigmoid_grad(const KernelCall& call) { return cpu::over_all(call, cpu::sigmoid_grad_span); }

}  // namespace

extern const CpuKernels sigmoid_cpu = {{"sigmoid", prepare_sigmoid}, {"sigmoid_grad", prepare_sigmoid_grad}};

}  // namespace trainctl
