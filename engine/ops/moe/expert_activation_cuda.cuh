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

/// The result of the function for a number of each part of u, and its slopes in both.
struct ActivatedPair {
  float a, slope, other_slope;
};

/// clamped_swiglu of a gate and the other part, given sigmoid(kClampRate * the clamped gate).
__device__ inline ActivatedPair clamped_swiglu(float gate, float other, float s) {
  const float g = fminf(gate, kClampLimit), up = fminf(fmaxf(other, -kClampLimit), kClampLimit);
  return {g * s * (up + 1), gate <= kClampLimit ? (up + 1) * s * (1 + kClampRate * g * (1 - s)) : 0.0f,
          fabsf(other) <= kClampLimit ? g * s : 0.0f};
}

/// `other` is not used by functions of one part.
__device__ inline ActivatedPair activated_pair(ExpertActivation activation, float gate, float other) {
  if (activation == ExpertActivation::clamped_swiglu)
    return clamped_swiglu(gate, other, sigmoid_of(kClampRate * fminf(gate, kClampLimit)));
  float slope;
  const float v = activated(activation, gate, slope);
  return is_gated(activation) ? ActivatedPair{v * other, other * slope, v} : ActivatedPair{v, slope, 0.0f};
}

/// The same by approximate instructions.
template <ExpertActivation A>
__device__ ActivatedPair activated_pair(float gate, float other) {
  if constexpr (A == ExpertActivation::clamped_swiglu) {
    return clamped_swiglu(gate, other, __fdividef(1.0f, 1.0f + __expf(-kClampRate * fminf(gate, kClampLimit))));
  } else {
    float slope;
    const float v = activated<A>(gate, slope);
    return is_gated(A) ? ActivatedPair{v * other, other * slope, v} : ActivatedPair{v, slope, 0.0f};
  }
}

}  // namespace trainctl
