// The last kernels of attention's gradient in one pass (attention_grad_one_pass_cuda.cu): they round the f32 sums that
// tiles_kernel leaves in memory to bf16 and write them in the layout of the gradients, dq from the sums of tiles, and
// dk and dv from the sums of parts.
#pragma once

#include "engine/ops/attention/one_pass_operands_cuda.cuh"

namespace trainctl::attention::one_pass {
namespace {

constexpr int kFinishThreads = 256;

/// A block of threads for 64 features of a tile.
template <int Features>
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const __grid_constant__ Gradient x) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const OnePassSchedule& schedule = x.schedule;
  // The last sums first: those are in the L2 cache.
  const int index = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  constexpr int kHalves = Features / 64, kTileSums = kRows * Features, kHalfSums = kTileSums / kHalves;
  const int half = index % kHalves, tile = index / kHalves % schedule.tiles, head = index / kHalves / schedule.tiles;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads,
            four = static_cast<int>(threadIdx.x) / kGroupThreads;
  const auto* from = reinterpret_cast<const float4*>(x.sums + x.tile_at(head, tile) * kTileSums + half * kHalfSums) +
                     four * 4 * kGroupThreads + thread;
  unsigned pairs[2][4];  // of rows 8 apart: columns 8 j + column + 0, 1
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float4 v = from[j * kGroupThreads];
    pairs[0][j] = pair_of(x.scale * v.x, x.scale * v.y), pairs[1][j] = pair_of(x.scale * v.z, x.scale * v.w);
  }
  // Among four threads: each takes the 8 columns of one j.
  const int j = thread % 4, row = thread / 32 * 16 + thread % 32 / 4, column = 64 * half + 32 * four + 8 * j;
  const int whole = x.first_group * x.r + head, g = whole / x.r % x.g, b = whole / x.r / x.g;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    unsigned got[4];
#pragma unroll
    for (int by = 0; by < 4; ++by) {
      const int to = j ^ by;  // sends it the pair of its columns, and gets its pair of mine
      unsigned mine = pairs[h][0];
#pragma unroll
      for (int i = 1; i < 4; ++i) mine = to == i ? pairs[h][i] : mine;
      const unsigned its = __shfl_xor_sync(~0u, mine, by);
#pragma unroll
      for (int i = 0; i < 4; ++i) got[i] = to == i ? its : (by == 0 ? 0 : got[i]);
    }
    const int at = tile * kRows + row + 8 * h;
    if (at < x.t && column < x.d)
      *reinterpret_cast<uint4*>(x.dq + offset_of(x.to_q, b, g, whole % x.r, at) + column) =
          make_uint4(got[0], got[1], got[2], got[3]);
  }
}

constexpr int kSumThreads = 256;

/// One thread per 8 features of a key, first for dk and then for dv.
template <int Features>
__global__ void __launch_bounds__(kSumThreads) add_parts_kernel(const __grid_constant__ Gradient x) {
  wait_for_kernel_before();
  let_next_kernel_start();
  constexpr int kPacks = Features / 8;
  const int keys = x.schedule.blocks * kKeys, pack = static_cast<int>(threadIdx.x) % kPacks;
  const int index = static_cast<int>(blockIdx.x) * (kSumThreads / kPacks) + static_cast<int>(threadIdx.x) / kPacks;
  const int key = index % keys, which = index / keys % 2, group = index / keys / 2;
  if (key >= x.s || 8 * pack >= x.d) return;
  float sum[8] = {};
  for (int part = 0; part < x.parts; ++part) {
    const auto* from = reinterpret_cast<const float4*>(x.part_at<Features>(group, part, which, key) + 8 * pack);
    const float4 a = from[0], b = from[1];
    const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += v[i];
  }
  const float scale = which == 0 ? x.scale : 1.0f;
  const int b = (x.first_group + group) / x.g, g = (x.first_group + group) % x.g;
  bf16* const to = which == 0 ? x.dk + offset_of(x.to_k, b, g, 0, key) : x.dv + offset_of(x.to_v, b, g, 0, key);
  *reinterpret_cast<uint4*>(to + 8 * pack) =
      make_uint4(pair_of(scale * sum[0], scale * sum[1]), pair_of(scale * sum[2], scale * sum[3]),
                 pair_of(scale * sum[4], scale * sum[5]), pair_of(scale * sum[6], scale * sum[7]));
}

}  // namespace
}  // namespace trainctl::attention::one_pass
