// The gradients of a small step's weights in one launch, or the steps of descent that they make: dW = A^T B with
// few rows in A and B. A block makes a tile of one of them; bias gradients are sums over the tile's operands on the
// way. Products are f32 by three_tf32_cuda.cuh; operands come by cp.async a few stages ahead, as they lie.
#include <algorithm>

#include "engine/ops/clusters_cuda.cuh"
#include "engine/ops/matmul/finish_cuda.h"
#include "engine/ops/matmul/groups_cuda.h"
#include "engine/ops/matmul/product_shape.h"
#include "engine/ops/matmul/three_tf32_cuda.cuh"

namespace trainctl::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kM = 64, kN = 32;                    ///< of a block; of each of the 2 x 2 warps half
constexpr int kStage = 32, kStages = 3;            ///< of k
constexpr int kPitchA = kM + 8, kPitchB = kN + 8;  ///< free of bank conflicts
constexpr int kStageFloats = kStage * (kPitchA + kPitchB);
constexpr int kMostGrads = 16;
constexpr int64_t kMostRows = 1024;

struct Grad {
  const float *a = nullptr, *b = nullptr;  ///< [k,m], [k,n]
  float* c = nullptr;                      ///< [m,n]
  float *a_sums = nullptr, *b_sums = nullptr;
  bool accumulate = false, sums_accumulate = false;
  bool a_fours = false, b_fours = false, c_pairs = false;  ///< may be moved 16, or 8, bytes at a time
  int m = 0, n = 0, k = 0;
  const float* descend = nullptr;
  int first_block = 0;

  __host__ __device__ int across() const { return (n + kN - 1) / kN; }
  __host__ __device__ int blocks() const { return (m + kM - 1) / kM * across(); }
};

struct Grads {
  Grad list[kMostGrads];
  int count = 0;
};

/// kStage rows of `width` neighbours from `col0` on; zeros beyond the end.
template <int kFloats, int kWidth>
__device__ void fetch(const float* from, int cols, int rows, int col0, int row0, float* to, int pitch) {
  constexpr int kAcross = kWidth / kFloats;
#pragma unroll
  for (int item = threadIdx.x; item < kStage * kAcross; item += kThreads) {
    const int row = item / kAcross, col = item % kAcross * kFloats;
    const bool there = row0 + row < rows && col0 + col < cols;
    copy_async<4 * kFloats>(to + row * pitch + col,
                            there ? from + static_cast<int64_t>(row0 + row) * cols + col0 + col : from, there);
  }
}

__device__ void fetch_stage(const Grad& g, int row0, int col0, int k0, float* stage) {
  if (g.a_fours)
    fetch<4, kM>(g.a, g.m, g.k, row0, k0, stage, kPitchA);
  else
    fetch<1, kM>(g.a, g.m, g.k, row0, k0, stage, kPitchA);
  float* const b = stage + kStage * kPitchA;
  if (g.b_fours)
    fetch<4, kN>(g.b, g.n, g.k, col0, k0, b, kPitchB);
  else
    fetch<1, kN>(g.b, g.n, g.k, col0, k0, b, kPitchB);
}

/// A warp's 32 x 16.
__device__ void multiply(const float* a, const float* b, TileSums (&sums)[2][2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, in_group = lane % 4;
  a += in_group * kPitchA + group;
  b += in_group * kPitchB + group;
#pragma unroll 2
  for (int k = 0; k < kStage; k += 8) {
    Fragment<2> right[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      right[j].set(0, b[k * kPitchB + j * 8]);
      right[j].set(1, b[(k + 4) * kPitchB + j * 8]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Fragment<4> left;
      left.set(0, a[k * kPitchA + i * 16]);
      left.set(1, a[k * kPitchA + i * 16 + 8]);
      left.set(2, a[(k + 4) * kPitchA + i * 16]);
      left.set(3, a[(k + 4) * kPitchA + i * 16 + 8]);
#pragma unroll
      for (int j = 0; j < 2; ++j) sums[i][j].add(left, right[j]);
    }
  }
}

/// A column of the stage, of those that lie at `at`.
__device__ float column_sum(const float* at, int pitch) {
  float sum = 0;
#pragma unroll 8
  for (int k = 0; k < kStage; ++k) sum += at[k * pitch];
  return sum;
}

__device__ float2 load_pair(const Grad& g, int row, int col) {
  if (row >= g.m || col >= g.n) return {};
  const float* const at = g.c + static_cast<int64_t>(row) * g.n + col;
  if (g.c_pairs) return *reinterpret_cast<const float2*>(at);
  return {at[0], col + 1 < g.n ? at[1] : 0.0f};
}

__device__ void store_pair(const Grad& g, int row, int col, float2 v) {
  if (row >= g.m || col >= g.n) return;
  float* const at = g.c + static_cast<int64_t>(row) * g.n + col;
  if (g.c_pairs) {
    *reinterpret_cast<float2*>(at) = v;
    return;
  }
  at[0] = v.x;
  if (col + 1 < g.n) at[1] = v.y;
}

__global__ void __launch_bounds__(kThreads) weight_grads(const __grid_constant__ Grads grads) {
  extern __shared__ float4 shared4[];
  float* const shared = reinterpret_cast<float*>(shared4);
  int which = 0;
  while (which + 1 < grads.count && static_cast<int>(blockIdx.x) >= grads.list[which + 1].first_block) ++which;
  const Grad& g = grads.list[which];
  const int tile = static_cast<int>(blockIdx.x) - g.first_block;
  const int row0 = tile / g.across() * kM, col0 = tile % g.across() * kN;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int own_row = warp / 2 * 32, own_col = warp % 2 * 16;  // of the warp, in the tile
  const int stages = (g.k + kStage - 1) / kStage;
  wait_for_kernel_before();
  let_next_kernel_start();
#pragma unroll 1
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < stages) fetch_stage(g, row0, col0, s * kStage, shared + s * kStageFloats);
    commit_copies();
  }
  float2 old[2][2][2] = {};
  if (g.accumulate) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      old[i / 4][i / 2 % 2][i % 2] = load_pair(g, row0 + own_row + i / 4 * 16 + i % 2 * 8 + lane / 4,
                                               col0 + own_col + i / 2 % 2 * 8 + lane % 4 * 2);
  }
  const float scale = g.descend == nullptr ? 1.0f : -*g.descend;

  TileSums sums[2][2];
  float a_sum = 0, b_sum = 0;
#pragma unroll 1
  for (int s = 0; s < stages; ++s) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    if (const int next = s + kStages - 1; next < stages)
      fetch_stage(g, row0, col0, next * kStage, shared + next % kStages * kStageFloats);
    commit_copies();
    const float* const a = shared + s % kStages * kStageFloats;
    const float* const b = a + kStage * kPitchA;
    multiply(a + own_row, b + own_col, sums);
    if (g.a_sums != nullptr && col0 == 0 && thread < kM) a_sum += column_sum(a + thread, kPitchA);
    if (g.b_sums != nullptr && row0 == 0 && thread < kN) b_sum += column_sum(b + thread, kPitchB);
  }

#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const TileSums& sum = sums[i / 4][i / 2 % 2];
    const float2 before = old[i / 4][i / 2 % 2][i % 2];
    store_pair(g, row0 + own_row + i / 4 * 16 + i % 2 * 8 + lane / 4, col0 + own_col + i / 2 % 2 * 8 + lane % 4 * 2,
               {sum.sum(i % 2 * 2) * scale + before.x, sum.sum(i % 2 * 2 + 1) * scale + before.y});
  }
  const auto store_sum = [&](float* to, float sum) { *to = sum * scale + (g.sums_accumulate ? *to : 0.0f); };
  const int row = row0 + thread, col = col0 + thread;
  if (g.a_sums != nullptr && col0 == 0 && thread < kM && row < g.m) store_sum(g.a_sums + row, a_sum);
  if (g.b_sums != nullptr && row0 == 0 && thread < kN && col < g.n) store_sum(g.b_sums + col, b_sum);
}

std::optional<Grad> grad_of(const GroupedKernel& kernel) {
  const CudaKernelCall& call = kernel.call;
  if (kernel.op != "matmul_weight_grad" || call.tf32 || call.attrs.flag("tf32")) return std::nullopt;
  for (const std::vector<TensorArg>* args : {&call.in, &call.out})
    for (const TensorArg& arg : *args)
      if (arg.dtype != DType::f32) return std::nullopt;
  const bool kn = call.attrs.flag("kn");
  const TensorArg &x = call.in[0], &dy = call.in[1], &left = kn ? x : dy, &right = kn ? dy : x;
  Product p;
  set_weight_grad_shape(call, left, right, p);
  constexpr int64_t kMost = int64_t{1} << 24;
  if (p.k == 0 || p.k > kMostRows || p.m == 0 || p.n == 0 || p.m > kMost || p.n > kMost) return std::nullopt;
  Grad g;
  g.a = left.as<float>();
  g.b = right.as<float>();
  g.c = call.out[0].as<float>();
  g.m = static_cast<int>(p.m);
  g.n = static_cast<int>(p.n);
  g.k = static_cast<int>(p.k);
  g.accumulate = p.accumulate;
  g.descend = p.descend;
  g.a_fours = p.m % 4 == 0 && is_aligned(g.a);
  g.b_fours = p.n % 4 == 0 && is_aligned(g.b);
  g.c_pairs = p.n % 2 == 0 && reinterpret_cast<uintptr_t>(g.c) % 8 == 0;
  if (call.out.size() > 1) {
    (kn ? g.b_sums : g.a_sums) = call.out[1].as<float>();
    g.sums_accumulate = call.out[1].accumulate;
  }
  return g;
}

}  // namespace

std::optional<CudaKernel> prepare_weight_grads(std::span<const GroupedKernel> kernels) {
  if (kernels.size() < 2 || kernels.size() > kMostGrads) return std::nullopt;
  Grads grads;
  int blocks = 0;
  for (const GroupedKernel& kernel : kernels) {
    std::optional<Grad> grad = grad_of(kernel);
    if (!grad) return std::nullopt;
    for (int i = 0; i < grads.count; ++i)  // all are made at the same time
      if (grads.list[i].c == grad->a || grads.list[i].c == grad->b) return std::nullopt;
    grad->first_block = blocks;
    blocks += grad->blocks();
    grads.list[grads.count++] = *grad;
  }
  return [=](CudaStream stream) {
    launch(weight_grads, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), kStages * kStageFloats * sizeof(float),
           stream, "weight_grads", grads);
  };
}

}  // namespace trainctl::cuda
