// What every CUDA kernel's launcher needs: error checks, grids, element types.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "engine/base/error.h"
#include "engine/ops/cuda_kernel.h"

namespace trainctl {

/// EnvError that names the call where CUDA refuses it.
inline void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw EnvError(std::string(what) + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")");
}
/// After a launch: bad grids and missing code for this card show here.
inline void cuda_check_launch(const char* kernel) { cuda_check(cudaGetLastError(), kernel); }

inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

using bf16 = __nv_bfloat16;

__device__ inline float to_f32(float v) { return v; }
__device__ inline float to_f32(bf16 v) { return __bfloat162float(v); }
template <class T>
__device__ T from_f32(float v);
template <>
__device__ inline float from_f32<float>(float v) {
  return v;
}
template <>
__device__ inline bf16 from_f32<bf16>(float v) {
  return __float2bfloat16_rn(v);
}

/// Calls run(T{}) with the element type.
template <class Run>
auto with_float_type(DType dtype, Run run) {
  check(dtype == DType::f32 || dtype == DType::bf16, "this operand is f32 or bf16");
  return dtype == DType::f32 ? run(float{}) : run(bf16{});
}

}  // namespace trainctl
