// gelu(x) = x * Phi(x), Phi the normal distribution; approximate=tanh (Hendrycks and Gimpel 2016):
// x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/elementwise/span_kernels_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

constexpr float kInverseSqrt2 = 0.70710678118654752f;
constexpr float kInverseSqrt2Pi = 0.39894228040143268f;
constexpr float kSqrt2OverPi = 0.79788456080286536f;
constexpr float kCubic = 0.044715f;

inline float exact(float x) { return 0.5f * x * (1.0f + cpu::erf(x * kInverseSqrt2)); }

inline float exact_slope(float x) {
  const float phi = kInverseSqrt2Pi * cpu::exp(-0.5f * x * x);
  return 0.5f * (1.0f + cpu::erf(x * kInverseSqrt2)) + x * phi;
}

inline float with_tanh(float x) { return 0.5f * x * (1.0f + cpu::tanh(kSqrt2OverPi * (x + kCubic * x * x * x))); }

inline float with_tanh_slope(float x) {
  const float t = cpu::tanh(kSqrt2OverPi * (x + kCubic * x * x * x));
  const float inner = kSqrt2OverPi * (1.0f + 3.0f * kCubic * x * x);
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
}

bool approximate(const KernelCall& call) { return call.attrs.text("approximate", "none") == "tanh"; }

}  // namespace

TRAINCTL_WIDE_LOOPS void cpu::gelu_span(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = exact(x[i]);
}

TRAINCTL_WIDE_LOOPS void cpu::gelu_tanh_span(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = with_tanh(x[i]);
}

TRAINCTL_WIDE_LOOPS void cpu::gelu_grad_span(const float* dy, const float* x, float* dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * exact_slope(x[i]);
}

TRAINCTL_WIDE_LOOPS void cpu::gelu_tanh_grad_span(const float* dy, const float* x, float* dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * with_tanh_slope(x[i]);
}

namespace {

CpuKernel prepare_gelu(const KernelCall& call) {
  return cpu::over_all(call, approximate(call) ? cpu::gelu_tanh_span : cpu::gelu_span);
}

CpuKernel prepare_gelu_grad(const KernelCall& call) {
  return cpu::over_all(call, approximate(call) ? cpu::gelu_tanh_grad_span : cpu::gelu_grad_span);
}

}  // namespace

extern const CpuKernels gelu_cpu = {{"gelu", prepare_gelu}, {"gelu_grad", prepare_gelu_grad}};

}  // namespace trainctl
