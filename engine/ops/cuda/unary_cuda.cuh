// The functions of ops/unary on a GPU, for stand-alone kernels and for fused chains.
#pragma once

#include "engine/ops/unary/functions.h"

namespace trainctl {

struct CudaMaths {
  __device__ static float exp(float x) { return expf(x); }
  __device__ static float log(float x) { return logf(x); }
  __device__ static float log1p(float x) { return log1pf(x); }
  __device__ static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
  __device__ static float tanh(float x) { return tanhf(x); }
  __device__ static float sqrt(float x) { return sqrtf(x); }
  __device__ static float abs(float x) { return fabsf(x); }
  __device__ static float pow(float x, float exponent) { return powf(x, exponent); }
  __device__ static float sin(float x) { return sinpif(half_turns(x)); }
  __device__ static float cos(float x) { return cospif(half_turns(x)); }
  /// An angle in radians as half turns from -1 to 1. The reduction in double needs no stack in local memory, which
  /// sinf and cosf have for large angles.
  __device__ static float half_turns(float x) {
    const double turns = static_cast<double>(x) * 0.15915494309189535;
    return static_cast<float>(2.0 * (turns - rint(turns)));
  }
};

template <Unary kFunction>
struct UnaryValue {
  UnaryParameters p;
  __device__ float operator()(float x) const { return UnaryFunction<kFunction, CudaMaths>::value(x, p); }
};

template <Unary kFunction>
struct UnaryGrad {
  UnaryParameters p;
  __device__ float operator()(float dy, float at) const { return UnaryFunction<kFunction, CudaMaths>::grad(dy, at, p); }
};

}  // namespace trainctl
