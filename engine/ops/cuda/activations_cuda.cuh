// The elementwise functions and their derivatives, for kernels of single ops and for fused chains.
#pragma once

namespace trainctl {

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Difference {
  __device__ float operator()(float a, float b) const { return a - b; }
};
struct Product {
  __device__ float operator()(float a, float b) const { return a * b; }
};
struct Quotient {
  __device__ float operator()(float a, float b) const { return a / b; }
};
struct Where {
  __device__ float operator()(float condition, float a, float b) const { return condition != 0.0f ? a : b; }
};
struct MaskedFill {
  float fill;
  bool invert;  ///< fills where the mask is 0
  __device__ float operator()(float x, float mask) const { return (mask != 0.0f) != invert ? fill : x; }
};

struct Relu {
  __device__ float operator()(float x) const { return x < 0.0f ? 0.0f : x; }  // keeps NaN
};
struct ReluGrad {
  __device__ float operator()(float dy, float y) const { return y > 0.0f ? dy : 0.0f; }
};

struct Sigmoid {
  __device__ float operator()(float x) const { return 1.0f / (1.0f + expf(-x)); }
};
struct SigmoidGrad {
  __device__ float operator()(float dy, float y) const { return dy * (y * (1.0f - y)); }
};

struct Tanh {
  __device__ float operator()(float x) const { return tanhf(x); }
};
struct TanhGrad {
  __device__ float operator()(float dy, float y) const { return dy * (1.0f - y * y); }
};

inline constexpr float kInverseSqrt2 = 0.70710678118654752f;
inline constexpr float kInverseSqrt2Pi = 0.39894228040143268f;
inline constexpr float kSqrt2OverPi = 0.79788456080286536f;
inline constexpr float kGeluCubic = 0.044715f;

/// 1 - Phi(|x|), Phi the normal distribution (Abramowitz and Stegun 7.1.26: within 1e-7). Takes fewer instructions than
/// erff, which would bound bf16 kernels. `bell`: e^(-x^2 / 2).
__device__ inline float normal_tail(float x, float& bell) {
  const float t = __fdividef(1.0f, fmaf(fabsf(x), 0.3275911f * kInverseSqrt2, 1.0f));
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(bell) : "f"(x * x * -0.72134752044448170f));
  float p = fmaf(t, 0.5f * 1.061405429f, 0.5f * -1.453152027f);
  p = fmaf(t, p, 0.5f * 1.421413741f);
  p = fmaf(t, p, 0.5f * -0.284496736f);
  p = fmaf(t, p, 0.5f * 0.254829592f);
  return t * p * bell;
}

struct Gelu {
  __device__ float operator()(float x) const {
    float bell;
    const float tail = normal_tail(x, bell);
    return fmaf(-fminf(fabsf(x), 64.0f), tail, fmaxf(x, 0.0f));  // inf * 0 is NaN
  }
};
struct GeluGrad {
  __device__ float operator()(float dy, float x) const {
    float bell;
    const float tail = normal_tail(x, bell), within = fminf(fmaxf(x, -64.0f), 64.0f);
    return dy * fmaf(within * kInverseSqrt2Pi, bell, x > 0.0f ? 1.0f - tail : tail);
  }
};
/// approximate: tanh (Hendrycks and Gimpel 2016). (1 + tanh u) / 2 = 1 / (1 + e^(-2 u)), with half of tanhf's
/// instructions, and precise where 1 + tanh u would cancel. Returns e^(-2 u).
__device__ inline float gelu_power(float x) {
  constexpr float kTwiceLog2E = 2.8853900817779268f, kSlope = -kTwiceLog2E * kSqrt2OverPi;
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * fmaf(x * x, kSlope * kGeluCubic, kSlope)));
  return power;
}
struct GeluTanh {
  __device__ float operator()(float x) const { return x * __fdividef(1.0f, 1.0f + gelu_power(x)); }
};
struct GeluTanhGrad {
  __device__ float operator()(float dy, float x) const {
    const float power = gelu_power(x), gate = __fdividef(1.0f, 1.0f + power);
    const float rest = fminf(power, 0x1p60f) * gate;  // 1 - gate; inf * 0 is NaN
    const float inner = kSqrt2OverPi * fmaf(x * x, 3.0f * kGeluCubic, 1.0f);
    return dy * fmaf(2.0f * x * inner, gate * rest, gate);
  }
};

}  // namespace trainctl
