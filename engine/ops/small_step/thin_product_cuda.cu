// Products with a vector, whose operands are read straight into registers. Sums of lanes and warps are added in a fixed
// order.
//   dots   a matrix that is contiguous along k, times a vector: a warp per element of C, whose lanes split k
//   sums   a vector times a matrix that is contiguous along n: a lane per column, the warps of a block split k
//   outer  k is 1: one thread per column
#include <algorithm>

#include "engine/ops/small_step/finish_cuda.h"

namespace trainctl::cuda {
namespace {

constexpr int kWarps = 8;  // per block

struct Arguments {
  const float *a, *b;
  int64_t a_step, b_step;
  int k;
  Finish finish;
};

/// Four elements of a row from k on; zeros beyond its end.
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

/// Computes kWarps adjacent elements of a column of C, or of a row.
template <bool kAlongColumn, bool kVectors>
__global__ void __launch_bounds__(32 * kWarps) dots(const Arguments args) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Finish& f = args.finish;
  const int row = kAlongColumn ? blockIdx.y * kWarps + warp : blockIdx.y;
  const int col = kAlongColumn ? blockIdx.x : blockIdx.x * kWarps + warp;
  let_next_kernel_start();
  wait_for_kernel_before();
  if (row >= f.m || col >= f.n) return;

  const float* const a = args.a + blockIdx.z * args.a_step + static_cast<int64_t>(row) * args.k;
  const float* const b = args.b + blockIdx.z * args.b_step + static_cast<int64_t>(col) * args.k;
  float sum = 0;
#pragma unroll 4
  for (int k = lane * 4; k < args.k; k += 128)
    sum = dot(four_of<kVectors>(a, k, args.k), four_of<kVectors>(b, k, args.k), sum);
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
  if (lane == 0) store_finished(f, static_cast<int64_t>(blockIdx.z) * f.m * f.n, row, col, sum);
}

template <bool kAlongColumn, bool kVectors>
CudaKernel prepare(const Arguments& args, int64_t batch) {
  const int64_t rows = kAlongColumn ? ceil_div(args.finish.m, kWarps) : args.finish.m;
  const int64_t cols = kAlongColumn ? args.finish.n : ceil_div(args.finish.n, kWarps);
  const dim3 grid(static_cast<unsigned>(cols), static_cast<unsigned>(rows), static_cast<unsigned>(batch));
  return [=](CudaStream stream) {
    launch(dots<kAlongColumn, kVectors>, grid, dim3(32 * kWarps), 0, stream, "dots", args);
  };
}

/// Computes 32 columns of C[1,n], and the sum of the vector: with a weight's gradient this is its bias's gradient.
__global__ void __launch_bounds__(32 * kWarps) sums(const Arguments args, float* a_sum, bool add_to_sum) {
  __shared__ float partial[kWarps][32], partial_a[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = blockIdx.x * 32 + lane;
  const Finish& f = args.finish;
  let_next_kernel_start();
  wait_for_kernel_before();

  float sum = 0, of_a = 0;
#pragma unroll 4
  for (int k = warp; k < args.k; k += kWarps) {
    const float a = args.a[k];
    of_a += a;
    if (col < f.n) sum += a * args.b[static_cast<int64_t>(k) * f.n + col];
  }
  partial[warp][lane] = sum;
  if (lane == 0) partial_a[warp] = of_a;
  __syncthreads();
  if (warp > 0) return;
  sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += partial[w][lane];
  if (col < f.n) store_finished(f, 0, 0, col, sum);
  if (a_sum == nullptr || blockIdx.x > 0 || lane > 0) return;
  of_a = 0;
  for (int w = 0; w < kWarps; ++w) of_a += partial_a[w];
  *a_sum = of_a * scale_of(f) + (add_to_sum ? *a_sum : 0.0f);
}

CudaKernel prepare_sums(const Arguments& args, float* a_sum, bool add_to_sum) {
  const dim3 grid(static_cast<unsigned>(ceil_div(args.finish.n, 32)));
  return [=](CudaStream stream) { launch(sums, grid, dim3(32 * kWarps), 0, stream, "sums", args, a_sum, add_to_sum); };
}

/// C[m,n] = a[m] b[n].
__global__ void __launch_bounds__(32 * kWarps) outer(const Arguments args) {
  const Finish& f = args.finish;
  let_next_kernel_start();
  wait_for_kernel_before();
  const int col = blockIdx.x * 32 * kWarps + threadIdx.x;
  if (col >= f.n) return;
  const float b = args.b[col];
#pragma unroll 4
  for (int row = blockIdx.y; row < f.m; row += gridDim.y) store_finished(f, 0, row, col, args.a[row] * b);
}

CudaKernel prepare_outer(const Arguments& args) {
  const int64_t columns = ceil_div(args.finish.n, 32 * kWarps);
  const int64_t rows = std::min<int64_t>(args.finish.m, std::max<int64_t>(1, 4 * multiprocessors() / columns));
  const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(rows));
  return [=](CudaStream stream) { launch(outer, grid, dim3(32 * kWarps), 0, stream, "outer", args); };
}

bool in_fours(const Product& p) {
  return p.k % 4 == 0 && p.a_step % 4 == 0 && p.b_step % 4 == 0 && is_aligned(p.a) && is_aligned(p.b);
}

}  // namespace

std::optional<CudaKernel> prepare_thin(const Product& p) {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (!can_finish(p) || p.batch > 65535 || p.m > kWarps * 65535 || p.n > kMost || p.k > kMost) return std::nullopt;
  const Arguments args{static_cast<const float*>(p.a),
                       static_cast<const float*>(p.b),
                       p.a_step,
                       p.b_step,
                       static_cast<int>(p.k),
                       finish_of(p)};
  const bool sums_rows = p.a_sums != nullptr || p.b_sums != nullptr;
  // A vector is contiguous, transposed or not.
  if (p.m == 1 && p.batch == 1 && p.n > 1 && p.k > 1 && !p.transpose_b && p.b_sums == nullptr)
    return prepare_sums(args, static_cast<float*>(p.a_sums), p.sums_accumulate);
  if (p.k == 1 && p.batch == 1 && !sums_rows) return prepare_outer(args);
  const bool along_k = (!p.transpose_a || p.m == 1) && (p.transpose_b || p.n == 1);
  if (!along_k || sums_rows || (p.m > 2 && p.n > 2)) return std::nullopt;
  if (p.m >= p.n) return in_fours(p) ? prepare<true, true>(args, p.batch) : prepare<true, false>(args, p.batch);
  return in_fours(p) ? prepare<false, true>(args, p.batch) : prepare<false, false>(args, p.batch);
}

}  // namespace trainctl::cuda
