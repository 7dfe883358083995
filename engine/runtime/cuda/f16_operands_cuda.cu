// Conversions between f16 and f32.
#include <cuda_fp16.h>

#include <algorithm>

#include "engine/ops/cuda/launch_cuda.h"
#include "engine/runtime/cuda/f16_operands.h"

namespace trainctl::cuda {
namespace {

constexpr int kConvertThreads = 256;
constexpr int64_t kMostConvertBlocks = 8192;

__global__ void widen_f16(const __half* halves, float* floats, int64_t count) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t step = gridDim.x * int64_t{kConvertThreads};
  for (int64_t i = blockIdx.x * int64_t{kConvertThreads} + threadIdx.x; i < count; i += step)
    floats[i] = __half2float(halves[i]);
}

__global__ void narrow_to_f16(const float* floats, __half* halves, int64_t count) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t step = gridDim.x * int64_t{kConvertThreads};
  for (int64_t i = blockIdx.x * int64_t{kConvertThreads} + threadIdx.x; i < count; i += step)
    halves[i] = __float2half_rn(floats[i]);
}

unsigned convert_blocks(int64_t count) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(count, kConvertThreads), 1, kMostConvertBlocks));
}

}  // namespace

void enqueue_widen(const uint16_t* halves, float* floats, int64_t count, CudaStream stream) {
  launch(widen_f16, convert_blocks(count), kConvertThreads, 0, stream, "widen_f16",
         reinterpret_cast<const __half*>(halves), floats, count);
}

void enqueue_narrow(const float* floats, uint16_t* halves, int64_t count, CudaStream stream) {
  launch(narrow_to_f16, convert_blocks(count), kConvertThreads, 0, stream, "narrow_to_f16", floats,
         reinterpret_cast<__half*>(halves), count);
}

}  // namespace trainctl::cuda
