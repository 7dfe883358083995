// The kernel of digests: a row of blocks for each range, and a part of the sum for each block.
#include <algorithm>

#include "engine/ops/cuda/launch_cuda.h"
#include "engine/runtime/cuda/range_digests.h"
#include "engine/runtime/range_digest.h"

namespace trainctl::cuda {
namespace {

constexpr int kDigestThreads = 256;

/// This block's part of a range. Memory that is aligned for them is read as whole words.
__device__ uint64_t part_of_digest(const DigestedRange& range) {
  const int64_t first = blockIdx.x * int64_t{kDigestThreads} + threadIdx.x, step = gridDim.x * int64_t{kDigestThreads};
  const int64_t whole = reinterpret_cast<uintptr_t>(range.at) % sizeof(uint32_t) == 0 ? range.bytes / 4 : 0;
  const auto* words = reinterpret_cast<const uint32_t*>(range.at);
  uint64_t sum = 0;
  int64_t i = first;
#pragma unroll 8
  for (; i < whole; i += step) sum += mixed_word(words[i], i);
  for (; i < words_of_bytes(range.bytes); i += step) sum += mixed_word(word_of_bytes(range.at, range.bytes, i), i);
  return sum;
}

/// Adds the sums of a warp's lanes.
__device__ uint64_t sum_of_warp(uint64_t sum) {
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, lanes);
  return sum;
}

__global__ void digest_ranges(const DigestedRange* ranges, int64_t count, uint64_t* parts) {
  __shared__ uint64_t of_warp[kDigestThreads / 32];
  wait_for_kernel_before();
  let_next_kernel_start();
  for (int64_t r = blockIdx.y; r < count; r += gridDim.y) {
    const uint64_t sum = sum_of_warp(part_of_digest(ranges[r]));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      uint64_t all = 0;
      for (const uint64_t one : of_warp) all += one;
      parts[r * gridDim.x + blockIdx.x] = all;
    }
    __syncthreads();
  }
}

}  // namespace

void enqueue_digests(const DigestedRange* ranges, int64_t count, int blocks, uint64_t* parts, cudaStream_t stream) {
  constexpr int64_t kMostRows = 65535;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(std::min(count, kMostRows)));
  launch(digest_ranges, grid, kDigestThreads, 0, stream, "digest_ranges", ranges, count, parts);
}

}  // namespace trainctl::cuda
