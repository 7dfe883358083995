// Shared by the gradients for Hopper: which calls they take, how the copy engine loads tiles of heads, and products of
// rows.
#pragma once

#include <cuda.h>

#include "engine/ops/attention/attention_shape.h"
#include "engine/ops/cuda/driver_function_cuda.h"
#include "engine/ops/cuda/hopper_cuda.h"
#include "engine/ops/cuda/warp_group_products_cuda.cuh"
#include "engine/ops/small_step/cluster_messages_cuda.cuh"

namespace trainctl::attention {

inline constexpr int kBoxFeatures = 64;  ///< features per copy: a line of 128 bytes

/// The copy engine's description of `rows` rows of each head, read in boxes of `box_rows` rows and 64 features; false:
/// it cannot read them.
inline bool describe(CUtensorMap& to, const void* data, const Heads& heads, const AttentionSize& n, int64_t rows,
                     int64_t r, int box_rows) {
  const auto encode = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  if (encode == nullptr) return false;
  const int64_t counts[5] = {n.d, rows, r, n.g, n.b};
  const int64_t steps[4] = {heads.row, r > 1 ? heads.head : n.d, n.g > 1 ? heads.group : n.d,
                            n.b > 1 ? heads.batch : n.d};
  cuuint64_t sizes[5], bytes[4];
  for (int i = 0; i < 5; ++i) sizes[i] = static_cast<cuuint64_t>(counts[i]);
  for (int i = 0; i < 4; ++i) {
    bytes[i] = static_cast<cuuint64_t>(steps[i]) * sizeof(bf16);
    if (bytes[i] % 16 != 0 || steps[i] <= 0) return false;
  }
  const cuuint32_t box[5] = {kBoxFeatures, static_cast<cuuint32_t>(box_rows), 1, 1, 1}, every[5] = {1, 1, 1, 1, 1};
  auto* const first = const_cast<bf16*>(static_cast<const bf16*>(data)) + heads.first;
  return encode(&to, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, first, sizes, bytes, box, every,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/// True if q, k, v, dy and the gradients are bf16 without a mask, a window (unless `windows`) or a softcap, where
/// 16-byte accesses reach them.
inline bool is_plain_bf16(const CudaKernelCall& call, const AttentionCall& a, bool windows = false) {
  const auto is_bf16 = [](const TensorArg& arg) { return arg.dtype == DType::bf16; };
  const auto starts = [](const TensorArg& arg) { return reinterpret_cast<uintptr_t>(arg.data) % 16 == 0; };
  if (a.masked || (a.window > 0 && !windows) || a.softcap > 0) return false;
  return is_bf16(call.in[0]) && is_bf16(call.in[a.q_at]) && is_bf16(call.in[a.k_at]) && is_bf16(call.out[0]) &&
         std::all_of(call.in.begin(), call.in.end(), starts) && std::all_of(call.out.begin(), call.out.end(), starts);
}

/// Loads a box, with zeros beyond the rows and features.
__device__ inline void copy_box(unsigned char* to, const CUtensorMap& map, int feature, int row, int r, int g, int b,
                                float* barrier) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(cuda::shared_address(to)),
      "l"(&map), "r"(feature), "r"(row), "r"(r), "r"(g), "r"(b), "r"(cuda::shared_address(barrier))
      : "memory");
#endif
}
template <int Bytes>
__device__ void copy_bytes(float* to, const float* from, float* barrier) {
#ifdef TRAINCTL_WARP_GROUP_PRODUCTS
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   cuda::shared_address(to)),
               "l"(from), "n"(Bytes), "r"(cuda::shared_address(barrier))
               : "memory");
#endif
}

/// Sum of the products of 8 numbers.
__device__ inline float dot_pack(const bf16* left, const bf16* right) {
  const uint4 l = *reinterpret_cast<const uint4*>(left), r = *reinterpret_cast<const uint4*>(right);
  const unsigned a[4] = {l.x, l.y, l.z, l.w}, b[4] = {r.x, r.y, r.z, r.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum += __uint_as_float(a[i] << 16) * __uint_as_float(b[i] << 16);
    sum += __uint_as_float(a[i] & 0xffff0000u) * __uint_as_float(b[i] & 0xffff0000u);
  }
  return sum;
}

}  // namespace trainctl::attention
