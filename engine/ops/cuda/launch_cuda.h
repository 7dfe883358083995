// Helpers of all CUDA kernel launchers: error checks, grids, element types.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "engine/base/error.h"
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

/// Throws EnvError that names the failed call.
inline void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw EnvError(std::string(what) + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")");
}
/// Called after a launch: reports bad grids and missing code for this GPU.
inline void cuda_check_launch(const char* kernel) { cuda_check(cudaGetLastError(), kernel); }

/// The number of multiprocessors of the current device.
inline int multiprocessors() {
  int device = 0, count = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

/// Returns the number of blocks of a kernel that run at once on the current device.
template <class... Parameters>
int64_t blocks_at_once(void (*kernel)(Parameters...), unsigned threads, size_t shared_bytes, const char* name) {
  int blocks = 0;
  cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, static_cast<int>(threads), shared_bytes),
             name);
  return int64_t{std::max(1, blocks)} * multiprocessors();
}

/// Programmatic dependent launch: a kernel may start while the preceding one still runs, and waits here until that
/// one's writes are visible. Every kernel calls this before it touches memory.
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Allows the next kernel of the stream to start; it waits as above.
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// True if the kernels that run on the current device contain the code for Hopper: the wait above, and clusters of
/// blocks. (The driver may have compiled them from PTX for an older GPU.) If not, none may be scheduled early.
bool built_for_hopper();

/// Kernels that run only if built_for_hopper() are empty in the code for older GPUs: compiling them twice takes time.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kCodeForHopper = false;
#else
inline constexpr bool kCodeForHopper = true;
#endif

/// Enqueues a kernel. If built_for_hopper(), it may start before the preceding kernel of the stream has ended: every
/// kernel begins with wait_for_kernel_before().
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, CudaStream stream,
            const char* name, const Arguments&... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = built_for_hopper() ? 1 : 0;
  cuda_check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), name);
}

inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

using bf16 = __nv_bfloat16;
using f16 = __half;

__device__ inline float to_f32(float v) { return v; }
__device__ inline float to_f32(bf16 v) { return __bfloat162float(v); }
__device__ inline float to_f32(f16 v) { return __half2float(v); }
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
template <>
__device__ inline f16 from_f32<f16>(float v) {
  return __float2half_rn(v);
}

/// Calls run(T{}) with the element type.
template <class Run>
auto with_float_type(DType dtype, Run run) {
  check(dtype == DType::f32 || dtype == DType::bf16, "this operand is f32 or bf16");
  return dtype == DType::f32 ? run(float{}) : run(bf16{});
}
/// The same for kernels that take f16 too (CudaKernelDef::takes_f16).
template <class Run>
auto with_any_float_type(DType dtype, Run run) {
  return dtype == DType::f16 ? run(f16{}) : with_float_type(dtype, run);
}

}  // namespace trainctl
