// The function between the two products of an expert on GPUs.
#pragma once

#include "engine/ops/moe/experts_size.h"

namespace trainctl {

constexpr float kGeluRoot = 0.7978845608028654f, kGeluCube = 0.044715f;  // of gelu's approximation by tanh

__device__ inline float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }

/// act(x), and its slope.
__device__ inline float activated(ExpertActivation activation, float x, float& slope) {
  if (activation == ExpertActivation::relu) {
    slope = x > 0 ? 1.0f : 0.0f;
    return x > 0 ? x : 0.0f;
  }
  if (activation == ExpertActivation::swiglu || activation == ExpertActivation::silu) {
    const float s = sigmoid_of(x);
    slope = s * (1 + x * (1 - s));
    return x * s;
  }
  const float t = tanhf(kGeluRoot * (x + kGeluCube * x * x * x));
  slope = 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kGeluRoot * (1 + 3 * kGeluCube * x * x);
  return 0.5f * x * (1 + t);
}

/// act(x), and its slope, by approximate instructions, for results in bf16: their error is below 1e-6 times the size of
/// x.
template <ExpertActivation A>
__device__ float activated(float x, float& slope) {
  if constexpr (A == ExpertActivation::relu) {
    slope = x > 0 ? 1.0f : 0.0f;
    return x > 0 ? x : 0.0f;
  } else if constexpr (A == ExpertActivation::swiglu || A == ExpertActivation::silu) {
    const float s = __fdividef(1.0f, 1.0f + __expf(-x));
    slope = s * (1 + x * (1 - s));
    return x * s;
  } else {  // (1 + tanh(y)) / 2 = 1 / (1 + e^(-2 y))
    const float half = __fdividef(1.0f, 1.0f + __expf(-2 * kGeluRoot * (x + kGeluCube * x * x * x)));
    slope = half + 2 * x * half * (1 - half) * kGeluRoot * (1 + 3 * kGeluCube * x * x);
    return x * half;
  }
}

}  // namespace trainctl
