// The copy engine (TMA) loads tiles of a matrix of floats into shared memory, one instruction a tile: 32 floats of each
// of several lines, with zeros beyond the matrix. Pack p (16 bytes) of line i is stored at the place of pack
// p ^ (i % 8), so that lines are read without bank conflicts.
#pragma once

#include <cuda.h>

#include "engine/ops/cuda/driver_function_cuda.h"
#include "engine/ops/small_step/cluster_messages_cuda.cuh"

namespace trainctl::cuda {

constexpr int kTileFloats = 32;  ///< in a line of a tile

/// The copy engine's description of a matrix.
struct TileMap {
  CUtensorMap map;
};

/// For `lines` lines of `width` floats (whole packs, the matrix aligned), in tiles of `tile_lines` x `tile_width`;
/// false: the driver does not support such copies.
[[maybe_unused]] inline bool encode_tile_map(TileMap& to, const float* matrix, int64_t lines, int64_t width,
                                             int tile_lines, int tile_width, CUtensorMapSwizzle swizzle) {
  const auto encode = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  if (encode == nullptr) return false;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(lines)};
  const cuuint64_t line_bytes[1] = {static_cast<cuuint64_t>(width) * sizeof(float)};
  const cuuint32_t tile[2] = {static_cast<cuuint32_t>(tile_width), static_cast<cuuint32_t>(tile_lines)};
  const cuuint32_t steps[2] = {1, 1};
  return encode(&to.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, const_cast<float*>(matrix), sizes, line_bytes, tile, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
[[maybe_unused]] inline bool set_tile_map(TileMap& to, const float* matrix, int64_t lines, int64_t width,
                                          int tile_lines) {
  return encode_tile_map(to, matrix, lines, width, tile_lines, kTileFloats, CU_TENSOR_MAP_SWIZZLE_128B);
}
/// Tiles of another width, in whole packs, without swizzling; in shared memory they need only 128-byte alignment.
[[maybe_unused]] inline bool set_plain_map(TileMap& to, const float* matrix, int64_t lines, int64_t width,
                                           int tile_lines, int tile_width) {
  return encode_tile_map(to, matrix, lines, width, tile_lines, tile_width, CU_TENSOR_MAP_SWIZZLE_NONE);
}

/// Called by one thread, before others use the barrier: each of its phases ends when the announced bytes have arrived.
__device__ inline void prepare_announcements(float* barrier) { init_barrier(barrier, 1); }
/// Called after it, before the first copy.
__device__ inline void publish_to_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/// Called by one thread, once for each phase that others wait_for_bytes() of.
__device__ inline void announce_bytes(float* barrier, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#endif
}
/// Called by one thread, some time before the copies.
__device__ inline void prefetch_map(const TileMap& map) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}
/// Loads the tile that starts at element `first` of line `line`; `to` is aligned to 8 lines.
__device__ inline void copy_tile(float* to, const TileMap& map, int first, int line, float* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(shared_address(to)),
      "l"(&map), "r"(first), "r"(line), "r"(shared_address(barrier))
      : "memory");
#endif
}

}  // namespace trainctl::cuda
