// gelu(x) = x * Phi(x), Phi the normal distribution; approximate=tanh (Hendrycks and Gimpel 2016):
// x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
#include "engine/ops/cpu_kernels.h"
#include "engine/ops/cpu_math.h"

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

template <float (*kFunction)(float)>
CpuKernel map(const KernelCall& call) {
  return [x = call.in[0].as<float>(), y = call.out[0].as<float>(), n = call.out[0].size()] {
    for (int64_t i = 0; i < n; ++i) y[i] = kFunction(x[i]);
  };
}

template <float (*kSlope)(float)>
CpuKernel map_grad(const KernelCall& call) {
  return
      [dy = call.in[0].as<float>(), x = call.in[1].as<float>(), dx = call.out[0].as<float>(), n = call.out[0].size()] {
        for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * kSlope(x[i]);
      };
}

bool approximate(const KernelCall& call) { return call.attrs.text("approximate", "none") == "tanh"; }

}  // namespace

CpuKernel prepare_gelu(const KernelCall& call) { return approximate(call) ? map<with_tanh>(call) : map<exact>(call); }

CpuKernel prepare_gelu_grad(const KernelCall& call) {
  return approximate(call) ? map_grad<with_tanh_slope>(call) : map_grad<exact_slope>(call);
}

}  // namespace trainctl
