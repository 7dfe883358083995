// amax and update_fp8_scale on a GPU. Magnitudes are compared as integers: the bits of a float without its sign are
// ordered as its magnitude, and a NaN is the largest.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/quantise/tensor_scale.h"

namespace trainctl {
namespace {

constexpr int kAmaxThreads = 256, kMostAmaxBlocks = 1024;  ///< amax_scratch has a word for each block

__device__ inline uint32_t magnitude_bits(float v) { return __float_as_uint(v) & 0x7fffffffu; }

/// The largest of the block's numbers, in all of its threads.
__device__ inline uint32_t largest_of_block(uint32_t most) {
  __shared__ uint32_t of_warps[kAmaxThreads / 32];
#pragma unroll
  for (int by = 16; by > 0; by /= 2) most = max(most, __shfl_xor_sync(~0u, most, by));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
  __syncthreads();
  for (int w = 0; w < kAmaxThreads / 32; ++w) most = max(most, of_warps[w]);
  return most;
}

/// blocks[b]: the largest magnitude of the numbers that block b reads. `packs`: x starts at a multiple of 16 bytes.
template <class T>
__global__ void __launch_bounds__(kAmaxThreads) amax_of_blocks(const T* x, int64_t n, bool packs, uint32_t* blocks) {
  wait_for_kernel_before();
  let_next_kernel_start();
  constexpr int kNumbers = kPack<T>;
  const int64_t first = int64_t{blockIdx.x} * kAmaxThreads + threadIdx.x, step = int64_t{gridDim.x} * kAmaxThreads;
  const int64_t whole = packs ? n / kNumbers : 0;
  uint32_t most = 0;
  for (int64_t p = first; p < whole; p += step) {
    T v[kNumbers];
    const uint4 q = load_16(x + p * kNumbers);
    memcpy(v, &q, sizeof q);
#pragma unroll
    for (int j = 0; j < kNumbers; ++j) most = max(most, magnitude_bits(to_f32(v[j])));
  }
  for (int64_t i = whole * kNumbers + first; i < n; i += step) most = max(most, magnitude_bits(to_f32(x[i])));
  most = largest_of_block(most);
  if (threadIdx.x == 0) blocks[blockIdx.x] = most;
}

__global__ void __launch_bounds__(kAmaxThreads)
    amax_of_all(const uint32_t* blocks, int64_t count, float* out, bool accumulate) {
  wait_for_kernel_before();
  let_next_kernel_start();
  uint32_t most = accumulate ? __float_as_uint(*out) : 0;
  for (int64_t b = threadIdx.x; b < count; b += kAmaxThreads) most = max(most, blocks[b]);
  most = largest_of_block(most);
  if (threadIdx.x == 0) *out = __uint_as_float(most);
}

CudaKernel prepare_amax(const CudaKernelCall& call) {
  return with_float_type(call.in[0].dtype, [&](auto t) -> CudaKernel {
    using T = decltype(t);
    const int64_t n = call.in[0].size();
    const int64_t blocks = std::clamp<int64_t>(ceil_div(n, int64_t{kAmaxThreads} * kPack<T> * 4), 1, kMostAmaxBlocks);
    call.scratch->need(blocks * byte_size(DType::i32));
    const bool packs = reinterpret_cast<uintptr_t>(call.in[0].data) % 16 == 0;
    return [=, x = call.in[0].as<T>(), out = call.out[0].as<float>(), accumulate = call.out[0].accumulate,
            scratch = call.scratch](CudaStream stream) {
      auto* const of_blocks = static_cast<uint32_t*>(scratch->memory());
      launch(amax_of_blocks<T>, static_cast<unsigned>(blocks), kAmaxThreads, 0, stream, "amax",
             static_cast<const T*>(x), n, packs, of_blocks);
      launch(amax_of_all, 1, kAmaxThreads, 0, stream, "amax", static_cast<const uint32_t*>(of_blocks), blocks, out,
             accumulate);
    };
  });
}

/// One block moves the history by a step, from its end on, so that no number is overwritten before it is read.
__global__ void __launch_bounds__(kAmaxThreads)
    update_fp8_scale(float* state, int64_t steps, const float* maxima, int64_t ranks, ScaleUpdate update) {
  wait_for_kernel_before();
  let_next_kernel_start();
  uint32_t of_step = 0;
  for (int64_t r = threadIdx.x; r < ranks; r += kAmaxThreads) of_step = max(of_step, magnitude_bits(maxima[r]));
  const float newest = ScaleUpdate::kept(__uint_as_float(largest_of_block(of_step)));
  __syncthreads();
  float* const history = state + kHistoryPlace;
  uint32_t most = magnitude_bits(newest);
  for (int64_t begin = (steps - 1) / kAmaxThreads * kAmaxThreads; begin >= 0; begin -= kAmaxThreads) {
    const int64_t i = begin + threadIdx.x;
    const float moved = i >= steps ? 0.0f : i == 0 ? newest : history[i - 1];
    __syncthreads();
    if (i < steps) history[i] = moved;
    most = max(most, magnitude_bits(moved));
    __syncthreads();
  }
  most = largest_of_block(most);
  if (threadIdx.x == 0) update.set_scale(newest, __uint_as_float(most), state);
}

CudaKernel prepare_update_fp8_scale(const CudaKernelCall& call) {
  const ScaleUpdate update{std::ldexp(1.0f, static_cast<int>(-call.attrs.integer("margin"))),
                           call.attrs.flag("most_recent"), call.attrs.flag("e5m2")};
  float* const state = call.in[0].as<float>();
  const bool has_ranks = call.in.size() > 1;
  const float* const maxima = has_ranks ? call.in[1].as<float>() : state + kAmaxPlace;
  const int64_t ranks = has_ranks ? call.in[1].size() : 1, steps = call.in[0].size() - kHistoryPlace;
  return [=](CudaStream stream) {
    launch(update_fp8_scale, 1, kAmaxThreads, 0, stream, "update_fp8_scale", state, steps, maxima, ranks, update);
  };
}

}  // namespace

extern const CudaKernels fp8_scale_cuda = {{"amax", prepare_amax}, {"update_fp8_scale", prepare_update_fp8_scale}};

}  // namespace trainctl
