// How the tiles of tile_product_cuda.cu move data: operands to shared memory and from there to registers, sums to
// the other blocks of a cluster, results to C. All of it is internal to that file.
#pragma once

#include "engine/ops/clusters_cuda.cuh"

namespace trainctl::cuda {
namespace {

struct Operand {
  const float* data;  ///< [rows,k], or [k,rows]
  int64_t step;       ///< to the next product's
  int rows, k;
};

/// One operand's part of a stage: kRows rows by kStage of k.
template <bool kAlongK, int kRows, int kStage, int kThreads, bool kVectors>
struct Part {
  static constexpr int kPitch = kAlongK ? kStage + 4 : kRows;
  static constexpr int kFloats = kAlongK ? kRows * kPitch : kStage * kPitch;

  /// Zeros beyond the last row and from k = `end` on.
  __device__ static void load(float* to, const float* data, const Operand& o, int row0, int k0, int end) {
    constexpr int kStep = kVectors ? 4 : 1;
    constexpr int kInner = kAlongK ? kStage : kRows, kOuter = kAlongK ? kRows : kStage;
    constexpr int kItems = kInner / kStep * kOuter;
#pragma unroll
    for (int first = 0; first < kItems; first += kThreads) {
      const int item = first + static_cast<int>(threadIdx.x);
      if (kItems % kThreads != 0 && item >= kItems) break;
      const int inner = item % (kInner / kStep) * kStep, outer = item / (kInner / kStep);
      const int row = row0 + (kAlongK ? outer : inner), k = k0 + (kAlongK ? inner : outer);
      const bool there = row < o.rows && k < end;
      const int64_t at = kAlongK ? static_cast<int64_t>(row) * o.k + k : static_cast<int64_t>(k) * o.rows + row;
      copy_async<kStep * 4>(to + outer * kPitch + inner, there ? data + at : data, there);
    }
  }

  /// fragment[k][i] for four k from `k` on. Thread t of kApart reads kCount rows: t, t + kApart, … where rows are
  /// apart in memory, else four neighbours at a time.
  template <int kCount, int kApart>
  __device__ static void fragment(const float* from, int row0, int t, int k, float (&f)[4][kCount]) {
    if constexpr (kAlongK) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float4 v = *reinterpret_cast<const float4*>(from + (row0 + t + i * kApart) * kPitch + k);
        f[0][i] = v.x, f[1][i] = v.y, f[2][i] = v.z, f[3][i] = v.w;
      }
    } else {
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
        for (int i = 0; i < kCount; i += 4) {
          const float4 v = *reinterpret_cast<const float4*>(from + (k + kk) * kPitch + row0 + i * kApart + t * 4);
          f[kk][i] = v.x, f[kk][i + 1] = v.y, f[kk][i + 2] = v.z, f[kk][i + 3] = v.w;
        }
      }
    }
  }
  /// The row, within the warp's, of element i of thread t's fragment.
  template <int kApart>
  __device__ static int row_of(int t, int i) {
    return kAlongK ? t + i * kApart : i / 4 * 4 * kApart + t * 4 + i % 4;
  }
};

/// To another block's shared memory, to where `own` is in this one's.
__device__ inline void give_block(float* own, int block, const float4& v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(own));
  asm volatile(
      "{.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};}" ::"r"(address),
      "r"(block), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
#endif
}
__device__ inline void give_block(float* own, int block, float v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(own));
  asm volatile(
      "{.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.f32 [there], %2;}" ::"r"(address),
      "r"(block), "f"(v)
      : "memory");
#endif
}

__device__ inline float relu(float v) { return v < 0.0f ? 0.0f : v; }  // a NaN stays one
__device__ inline void add(float4& to, const float4& v) { to.x += v.x, to.y += v.y, to.z += v.z, to.w += v.w; }

/// Four neighbours of a row of C, or of what lies like it.
template <bool kVectors>
__device__ float4 load4(const float* row, int col, int n) {
  if constexpr (kVectors) {
    return col < n ? *reinterpret_cast<const float4*>(row + col) : float4{};
  } else {
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = col + i < n ? row[col + i] : 0.0f;
    return {v[0], v[1], v[2], v[3]};
  }
}

template <bool kVectors>
__device__ void store4(float* row, int col, int n, const float4& v) {
  if constexpr (kVectors) {
    if (col < n) *reinterpret_cast<float4*>(row + col) = v;
  } else {
    const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (col + i < n) row[col + i] = values[i];
  }
}

}  // namespace
}  // namespace trainctl::cuda
