// Data movement of the tiles of tensor_tile_cuda.cuh: operands to shared memory and on to registers, sums through
// shared memory, results to C. Internal to those tiles.
#pragma once

#include "engine/ops/small_step/clusters_cuda.cuh"

namespace trainctl::cuda {
namespace {

struct Operand {
  const float* data = nullptr;  ///< [rows,k], or [k,rows]
  int64_t step = 0;             ///< elements to the next product of the batch
  int rows = 0, k = 0;
};

constexpr int power_of_two_up_to(int n) {
  int power = 1;
  while (2 * power <= n) power *= 2;
  return power;
}

/// One operand's part of a stage: kRows rows by kStage of k. Its layout in shared memory is that of global memory; a
/// warp reads its fragments without bank conflicts.
template <bool kAlongK, int kRows, int kStage, int kThreads, bool kVectors>
struct Part {
  static constexpr int kPitch = kAlongK ? kStage + 8 : kRows + 4;
  static constexpr int kFloats = kAlongK ? kRows * kPitch : kStage * kPitch;
  static_assert(kRows % 8 == 0 && kStage % 32 == 0);

  // A thread copies the same kStep elements of every kDown-th line of a stage.
  static constexpr int kStep = kVectors ? 4 : 1;
  static constexpr int kInner = kAlongK ? kStage : kRows, kOuter = kAlongK ? kRows : kStage;
  static constexpr int kAcross = kInner / kStep, kDown = power_of_two_up_to(kThreads / kAcross);

  /// Loads consecutive stages of the rows from `row0` on.
  class Source {
   public:
    __device__ Source(const Operand& o, int64_t z, int row0, int k0) {
      const int line = static_cast<int>(threadIdx.x) / kAcross, at = static_cast<int>(threadIdx.x) % kAcross * kStep;
      row_ = row0 + (kAlongK ? line : at);
      k_ = k0 + (kAlongK ? at : line);
      to_ = line * kPitch + at;
      from_ = o.data + z * o.step + (kAlongK ? int64_t{row_} * o.k + k_ : int64_t{k_} * o.rows + row_);
    }
    /// Loads the next stage. Zeros beyond the last row and from k = `end` on: a copy of zero bytes reads nothing.
    __device__ void load(float* stage, const Operand& o, int end) {
      const int64_t line = kAlongK ? o.k : o.rows;
      if (kThreads == kAcross * kDown || threadIdx.x < kAcross * kDown) {
        const float* from = from_;
#pragma unroll(kVectors ? 16 : 4)
        for (int down = 0; down < kOuter; down += kDown, from += kDown * line) {
          if (down + kDown > kOuter && to_ + down * kPitch >= kOuter * kPitch) break;
          const bool there = kAlongK ? row_ + down < o.rows && k_ < end : row_ < o.rows && k_ + down < end;
          copy_async<4 * kStep>(stage + to_ + down * kPitch, from, there);
        }
      }
      from_ += kAlongK ? kStage : kStage * line;
      k_ += kStage;
    }

   private:
    const float* from_;
    int row_, k_, to_;  ///< position of the first copy of the next stage
  };

  // Fragments of mma (three_tf32_cuda.cuh) for kCount x 8 rows and 8 of k. The mapping of rows and k to mma's is free:
  // a lane takes two adjacent k and, if rows are adjacent in memory, up to four of them.

  /// f[r]: row row_of(group, r), at k + 2 in_group and k + 2 in_group + 1.
  template <int kCount>
  __device__ static void fragment(const float* from, int row0, int k, float (&f)[kCount][2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, in_group = lane % 4;
    if constexpr (kAlongK) {
#pragma unroll
      for (int r = 0; r < kCount; ++r) {
        const float2 v = *reinterpret_cast<const float2*>(from + (row0 + group + 8 * r) * kPitch + k + 2 * in_group);
        f[r][0] = v.x, f[r][1] = v.y;
      }
    } else {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float* const row = from + (k + 2 * in_group + e) * kPitch + row0;
        constexpr int kFours = kCount / 4 * 4, kPairs = kCount / 2 * 2;
#pragma unroll
        for (int r = 0; r < kFours; r += 4) {
          const float4 v = *reinterpret_cast<const float4*>(row + 8 * r + 4 * group);
          f[r][e] = v.x, f[r + 1][e] = v.y, f[r + 2][e] = v.z, f[r + 3][e] = v.w;
        }
        if constexpr (kFours < kPairs) {
          const float2 v = *reinterpret_cast<const float2*>(row + 8 * kFours + 2 * group);
          f[kFours][e] = v.x, f[kFours + 1][e] = v.y;
        }
        if constexpr (kPairs < kCount) f[kPairs][e] = row[8 * kPairs + group];
      }
    }
  }
  template <int kCount>
  __host__ __device__ static constexpr int row_of(int group, int r) {
    if (kAlongK) return 8 * r + group;
    const int fours = kCount / 4 * 4, pairs = kCount / 2 * 2;
    if (r < fours) return r / 4 * 32 + 4 * group + r % 4;
    return r < pairs ? 8 * fours + 2 * group + r - fours : 8 * pairs + group;
  }
  /// Stores a row of C to shared memory; v[r]: columns row_of(2 in_group, r) and row_of(2 in_group + 1, r).
  template <int kCount>
  __device__ static void store_columns(float* row, const float (&v)[kCount][2]) {
    const int in_group = static_cast<int>(threadIdx.x) % 4;
    if constexpr (kAlongK) {
#pragma unroll
      for (int r = 0; r < kCount; ++r) *reinterpret_cast<float2*>(row + 8 * r + 2 * in_group) = {v[r][0], v[r][1]};
    } else {
      constexpr int kFours = kCount / 4 * 4, kPairs = kCount / 2 * 2;
#pragma unroll
      for (int r = 0; r < kFours; r += 4) {
        float4* const to = reinterpret_cast<float4*>(row + 8 * r + 8 * in_group);
        to[0] = {v[r][0], v[r + 1][0], v[r + 2][0], v[r + 3][0]};
        to[1] = {v[r][1], v[r + 1][1], v[r + 2][1], v[r + 3][1]};
      }
      if constexpr (kFours < kPairs) {
        *reinterpret_cast<float4*>(row + 8 * kFours + 4 * in_group) = {v[kFours][0], v[kFours + 1][0], v[kFours][1],
                                                                       v[kFours + 1][1]};
      }
      if constexpr (kPairs < kCount)
        *reinterpret_cast<float2*>(row + 8 * kPairs + 2 * in_group) = {v[kPairs][0], v[kPairs][1]};
    }
  }
  static constexpr int kColumnsPad = kAlongK ? 8 : 4;  ///< padding of C's rows there, against bank conflicts
};

__device__ inline float relu(float v) { return v < 0.0f ? 0.0f : v; }  // keeps NaN
__device__ inline void add(float4& to, const float4& v) { to.x += v.x, to.y += v.y, to.z += v.z, to.w += v.w; }

/// Four adjacent elements of a row of C, or of a tensor of its shape.
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

/// The same, copied to shared memory asynchronously; zeros unless `there`.
template <bool kVectors>
__device__ void copy4(float* to, const float* row, int col, int n, bool there) {
  if constexpr (kVectors) {
    copy_async<16>(to, row + col, there && col < n);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) copy_async<4>(to + i, row + col + i, there && col + i < n);
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
