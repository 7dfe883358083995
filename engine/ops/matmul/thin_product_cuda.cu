// Products with few outputs for each multiprocessor: everything is read straight into registers, the lanes of a
// warp share k, and the sums of lanes and warps are added up in a fixed order. A must be contiguous along k.
//   dots     B too: a warp makes 8 x 4 (or 1 x 1) of C, each lane from every 32nd four of k
//   columns  B contiguous along its columns: a warp makes 4 x 32, a lane 4 x 4 of them from every 4th four of k
#include "engine/ops/matmul/finish_cuda.h"

namespace trainctl::cuda {
namespace {

constexpr int kWarps = 8;  // a block

struct Arguments {
  const float *a, *b;
  int64_t a_step, b_step;
  int k;
  Finish finish;
};

/// Four of k from a row, zeros beyond its end.
template <bool kVectors>
__device__ float4 four_of(const float* row, int k, int end) {
  if constexpr (kVectors) {
    return k < end ? *reinterpret_cast<const float4*>(row + k) : float4{};
  } else {
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = k + i < end ? row[k + i] : 0.0f;
    return {v[0], v[1], v[2], v[3]};
  }
}

__device__ inline float dot(const float4& a, const float4& b, float sum) {
  sum += a.x * b.x;
  sum += a.y * b.y;
  sum += a.z * b.z;
  return sum + a.w * b.w;
}

/// The lanes' sums of each of kCount values; lane i gets that of value i % kCount.
template <int kCount>
__device__ float sum_over_lanes(float (&v)[kCount], int lane) {
  static_assert(kCount == 32 || kCount == 1);
  if constexpr (kCount == 1) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) v[0] += __shfl_xor_sync(~0u, v[0], apart);
  } else {
    // Each round halves what a lane holds: it keeps the half that its bit chooses.
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
      const bool upper = (lane & half) != 0;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float keep = upper ? v[i + half] : v[i], give = upper ? v[i] : v[i + half];
        v[i] = keep + __shfl_xor_sync(~0u, give, half);
      }
    }
  }
  return v[0];
}

/// A block makes kTall x kWide warp tiles, each by kWarps / (kTall * kWide) warps that share k.
template <int kRows, int kCols, int kTall, int kWide, bool kVectors>
__global__ void __launch_bounds__(32 * kWarps) dots(const Arguments args) {
  constexpr int kShares = kWarps / (kTall * kWide);
  __shared__ float partial[kShares][kTall * kWide][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = warp % (kTall * kWide);
  const int share = warp / (kTall * kWide);
  const Finish& f = args.finish;
  const int row0 = (blockIdx.y * kTall + tile / kWide) * kRows, col0 = (blockIdx.x * kWide + tile % kWide) * kCols;
  const float* const a = args.a + blockIdx.z * args.a_step;
  const float* const b = args.b + blockIdx.z * args.b_step;
  let_next_kernel_start();
  wait_for_kernel_before();

  // Rows beyond the last one are read as the last one, and not stored.
  const float *rows[kRows], *cols[kCols];
#pragma unroll
  for (int i = 0; i < kRows; ++i) rows[i] = a + static_cast<int64_t>(min(row0 + i, f.m - 1)) * args.k;
#pragma unroll
  for (int j = 0; j < kCols; ++j) cols[j] = b + static_cast<int64_t>(min(col0 + j, f.n - 1)) * args.k;
  float sums[kRows * kCols] = {};
#pragma unroll 2
  for (int k = (share * 32 + lane) * 4; k < args.k; k += kShares * 128) {
    float4 x[kRows], y[kCols];
#pragma unroll
    for (int j = 0; j < kCols; ++j) y[j] = four_of<kVectors>(cols[j], k, args.k);
#pragma unroll
    for (int i = 0; i < kRows; ++i) x[i] = four_of<kVectors>(rows[i], k, args.k);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) sums[i * kCols + j] = dot(x[i], y[j], sums[i * kCols + j]);
    }
  }
  float sum = sum_over_lanes(sums, lane);
  if constexpr (kShares > 1) {
    partial[share][tile][lane] = sum;
    __syncthreads();
    if (share > 0) return;
#pragma unroll
    for (int s = 1; s < kShares; ++s) sum += partial[s][tile][lane];
  }
  const int row = row0 + lane / kCols, col = col0 + lane % kCols;
  if (lane < kRows * kCols && row < f.m && col < f.n)
    store_finished(f, static_cast<int64_t>(blockIdx.z) * f.m * f.n, row, col, sum);
}

/// A block makes 4 x 32 of C; its eight warps share k.
template <bool kVectors>
__global__ void __launch_bounds__(32 * kWarps) columns(const Arguments args) {
  constexpr int kRows = 4, kPitch = 32 + 4;
  __shared__ float4 partial[kWarps][kRows][kPitch / 4];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, along_k = lane / 8;
  const Finish& f = args.finish;
  const int row0 = blockIdx.y * kRows, col0 = blockIdx.x * 32, col = col0 + lane % 8 * 4;
  const float* const a = args.a + blockIdx.z * args.a_step;
  const float* const b = args.b + blockIdx.z * args.b_step;
  let_next_kernel_start();
  wait_for_kernel_before();

  const float* rows[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) rows[i] = a + static_cast<int64_t>(min(row0 + i, f.m - 1)) * args.k;
  float4 sums[kRows] = {};
#pragma unroll 4
  for (int k = (warp * 4 + along_k) * 4; k < args.k; k += kWarps * 16) {
    float4 x[kRows], y[4];
#pragma unroll
    for (int kk = 0; kk < 4; ++kk)
      y[kk] = k + kk < args.k ? four_of<kVectors>(b + static_cast<int64_t>(k + kk) * f.n, col, f.n) : float4{};
#pragma unroll
    for (int i = 0; i < kRows; ++i) x[i] = four_of<kVectors>(rows[i], k, args.k);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float along[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
        sums[i].x += along[kk] * y[kk].x;
        sums[i].y += along[kk] * y[kk].y;
        sums[i].z += along[kk] * y[kk].z;
        sums[i].w += along[kk] * y[kk].w;
      }
    }
  }
  // Over the four lanes that share columns: each ends with one row.
  float4 sum{};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float4 v = sums[i];
#pragma unroll
    for (int apart = 8; apart < 32; apart *= 2) {
      v.x += __shfl_xor_sync(~0u, v.x, apart);
      v.y += __shfl_xor_sync(~0u, v.y, apart);
      v.z += __shfl_xor_sync(~0u, v.z, apart);
      v.w += __shfl_xor_sync(~0u, v.w, apart);
    }
    if (along_k == i) sum = v;
  }
  partial[warp][along_k][lane % 8] = sum;
  __syncthreads();
  if (threadIdx.x >= 32 * kRows) return;
  const int r = threadIdx.x / 32, c = threadIdx.x % 32;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += reinterpret_cast<const float*>(partial[w][r])[c];
  if (row0 + r < f.m && col0 + c < f.n)
    store_finished(f, static_cast<int64_t>(blockIdx.z) * f.m * f.n, row0 + r, col0 + c, total);
}

CudaKernel prepare(void (*kernel)(Arguments), const Arguments& args, int64_t rows, int64_t cols, int64_t batch) {
  const dim3 grid(static_cast<unsigned>(ceil_div(args.finish.n, cols)),
                  static_cast<unsigned>(ceil_div(args.finish.m, rows)), static_cast<unsigned>(batch));
  return [=](CudaStream stream) { launch(kernel, grid, dim3(32 * kWarps), 0, stream, "thin_product", args); };
}

template <bool kVectors>
CudaKernel prepare_dots(const Arguments& args, int64_t batch) {
  const int m = args.finish.m, n = args.finish.n;
  if (n <= 2 || m <= 2) {  // vectors: long ones get all warps of a block
    if (m * n <= 132 && args.k > 1024) return prepare(dots<1, 1, 1, 1, kVectors>, args, 1, 1, batch);
    return m >= n ? prepare(dots<1, 1, 8, 1, kVectors>, args, 8, 1, batch)
                  : prepare(dots<1, 1, 1, 8, kVectors>, args, 1, 8, batch);
  }
  return prepare(dots<8, 4, 2, 2, kVectors>, args, 16, 8, batch);
}

bool in_fours(const Product& p) {
  const int64_t b_inner = p.transpose_b || p.n == 1 ? p.k : p.n;
  return p.k % 4 == 0 && b_inner % 4 == 0 && p.a_step % 4 == 0 && p.b_step % 4 == 0 && is_aligned(p.a) &&
         is_aligned(p.b);
}

}  // namespace

std::optional<CudaKernel> prepare_thin(const Product& p) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const bool sums = p.a_sums != nullptr || p.b_sums != nullptr;
  if (!can_finish(p) || sums || p.batch > 65535 || p.m > 4 * 65535 || p.n > kMost || p.k > kMost) return std::nullopt;
  if (p.transpose_a && p.m > 1) return std::nullopt;
  const Arguments args{static_cast<const float*>(p.a),
                       static_cast<const float*>(p.b),
                       p.a_step,
                       p.b_step,
                       static_cast<int>(p.k),
                       finish_of(p)};
  if (p.transpose_b || p.n == 1)
    return in_fours(p) ? prepare_dots<true>(args, p.batch) : prepare_dots<false>(args, p.batch);
  return prepare(in_fours(p) ? columns<true> : columns<false>, args, 4, 32, p.batch);
}

}  // namespace trainctl::cuda
