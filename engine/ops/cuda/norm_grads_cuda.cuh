// A norm's gradients in one pass over its rows [count, n]: dx (+ a residual's gradient), and the sums over the rows
// that are the gradients of its parameters.
//   g = dy * gamma    dx = rstd * (g - mean(g) - xhat * mean(g * xhat))    dgamma = sum dy * xhat    dbeta = sum dy
// A team of threads takes kRowsAtOnce rows at a time; a thread has the same pack of columns of each, so it adds up the
// terms of its columns in registers. At its end a block writes its sums, and a second kernel adds those of all blocks.
#pragma once

#include <optional>

#include "engine/ops/cuda/cuda_scratch.h"
#include "engine/ops/cuda/kernels_in_order_cuda.h"
#include "engine/ops/cuda/norms_cuda.cuh"
#include "engine/ops/cuda/sums_cuda.cuh"
#include "engine/ops/norm_grad.h"

namespace trainctl {

inline constexpr int kNormGradThreads = 384;       ///< block's threads unless a row needs more; two blocks run at once
inline constexpr int kMostNormGradThreads = 1024;  ///< most threads per row
inline constexpr int kRowsAtOnce = 2;
inline constexpr int kAdders = 8;  ///< threads that share a column's sum over the blocks

/// The distribution of rows: `teams` of `team` threads in a block, whole warps.
struct NormGradShape {
  int64_t rows = 0;
  int n = 0, team = 32, teams = 1;
};

template <class T>
struct NormGradOperands {
  Ref<T> dy, x;
  Ref<float> means, rstds;  ///< means: null in a norm that is not centered
  RowSide<T> gamma;
  Ref<T> residual;  ///< null: there is none
  Ref<T> dx;
  float* sums = nullptr;  ///< [blocks, parameters, n], or null: no parameter's gradient is wanted
};

// Kernels

/// Each pair of sums, over a team's threads; all of them get it. All threads of the block take part.
template <int kValues, int kWarps>
__device__ void sum_of_team(float (&v)[kValues], int team, float (&of_warps)[kWarps][kValues]) {
#pragma unroll
  for (int away = 16; away > 0; away /= 2) {
#pragma unroll
    for (int k = 0; k < kValues; ++k) v[k] += __shfl_xor_sync(~0u, v[k], away);
  }
  if (team == 32) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = team / 32, first = warp / warps * warps;
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int k = 0; k < kValues; ++k) of_warps[warp][k] = v[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kValues; ++k) v[k] = 0;
  for (int w = first; w < first + warps; ++w) {
#pragma unroll
    for (int k = 0; k < kValues; ++k) v[k] += of_warps[w][k];
  }
}

/// to += from
template <class T, int V>
__device__ __forceinline__ void add_pack(const Raw<T, V>& from, float (&to)[V]) {
  float more[V];
  unpack(from, more);
#pragma unroll
  for (int j = 0; j < V; ++j) to[j] += more[j];
}

/// Adds the terms of dgamma and dbeta over the teams of a block and writes them to `sums` of all blocks, [blocks,
/// kSums, n]. `of_teams`: shared memory, [teams, kSums, n]. `team`, `place`: the team and the first column of this
/// thread.
template <int kSums, int V>
__device__ __forceinline__ void write_block_sums(const NormGradShape& shape, float* sums, float* of_teams, int team,
                                                 int place, const float (&of_gamma)[V], const float (&of_beta)[V]) {
  if (place < shape.n) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      of_teams[(team * kSums) * shape.n + place + j] = of_gamma[j];
      if constexpr (kSums == 2) of_teams[(team * kSums + 1) * shape.n + place + j] = of_beta[j];
    }
  }
  __syncthreads();
  float* const own = sums + static_cast<int64_t>(blockIdx.x) * kSums * shape.n;
  for (int i = static_cast<int>(threadIdx.x); i < kSums * shape.n; i += static_cast<int>(blockDim.x)) {
    float total = 0;
    for (int t = 0; t < shape.teams; ++t) total += of_teams[t * kSums * shape.n + i];
    own[i] = total;
  }
}

/// Adds the terms of V columns of a row to those columns' dgamma and dbeta, and sets the row's sums over them: of g *
/// xhat, and if centred also of g.
template <bool kCentred, class T, int V>
__device__ __forceinline__ void add_row(const Raw<T, V>& raw_dy, const Raw<T, V>& raw_x, float mean, float rstd,
                                        const float (&scale)[V], float (&of_gamma)[V], float (&of_beta)[V],
                                        float* sums) {
  float dy[V], along[V], xhat;
  unpack(raw_dy, dy);
  unpack(raw_x, along);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    xhat = (along[j] - mean) * rstd;
    of_gamma[j] += dy[j] * xhat;
    if constexpr (kCentred) of_beta[j] += dy[j];
    dy[j] *= scale[j];
    along[j] = dy[j] * xhat;
  }
  sums[0] = sum_of_pack(along);
  if constexpr (kCentred) sums[1] = sum_of_pack(dy);
}

/// dx of V columns of a row, from the means of g and of g * xhat over the whole row.
template <class T, int V>
__device__ __forceinline__ void row_grad(const Raw<T, V>& raw_dy, const Raw<T, V>& raw_x, float mean, float rstd,
                                         const float (&scale)[V], float of_g, float of_product, float (&dx)[V]) {
  float x[V];
  unpack(raw_dy, dx);
  unpack(raw_x, x);
#pragma unroll
  for (int j = 0; j < V; ++j) dx[j] = rstd * (dx[j] * scale[j] - of_g - (x[j] - mean) * rstd * of_product);
}

/// dx [rows, n] and, if wanted, each block's sums of the terms of dgamma and dbeta. A thread has V columns of every row
/// of its team. kCentred: the norm subtracts the mean (layer_norm), and has a beta.
template <int V, int kThreads, bool kCentred, class T>
__global__ void __launch_bounds__(kThreads, kThreads == kNormGradThreads ? 2 : 1)
    norm_grads_kernel(NormGradShape shape, NormGradOperands<T> with) {
  constexpr int R = kRowsAtOnce, kSums = kCentred ? 2 : 1;
  __shared__ float of_warps[2][kThreads / 32][R * kSums];
  extern __shared__ float of_teams[];  // [teams, kSums, n], for the sums at the end
  wait_for_kernel_before();
  let_next_kernel_start();
  const int lane = static_cast<int>(threadIdx.x) % shape.team, in_block = static_cast<int>(threadIdx.x) / shape.team;
  const int place = lane * V;
  const bool has_columns = place < shape.n;
  const float share = 1.0f / static_cast<float>(shape.n);
  float scale[V] = {};
  if (has_columns && with.gamma.p.p != nullptr) load(with.gamma.p, place, scale);
#pragma unroll
  for (int j = 0; j < V; ++j) scale[j] += with.gamma.base;
  float of_gamma[V] = {}, of_beta[V] = {};
  const int64_t step = static_cast<int64_t>(gridDim.x) * shape.teams * R;
  int turn = 0;
  for (int64_t round = static_cast<int64_t>(blockIdx.x) * shape.teams * R; round < shape.rows; round += step) {
    const int64_t first = round + in_block * R;
    Raw<T, V> raw_dy[R], raw_x[R], raw_residual[R];
    float mean[R], rstd[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      mean[r] = rstd[r] = 0;
      if (first + r >= shape.rows || !has_columns) continue;
      const int64_t at = (first + r) * shape.n + place;
      raw_dy[r] = fetch<V>(with.dy, at);
      raw_x[r] = fetch<V>(with.x, at);
      if (with.residual.p != nullptr) raw_residual[r] = fetch<V>(with.residual, at);
      if constexpr (kCentred) mean[r] = value(with.means, first + r);
      rstd[r] = value(with.rstds, first + r);
    }
    float sums[R * kSums] = {};
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (first + r >= shape.rows || !has_columns) continue;
      add_row<kCentred>(raw_dy[r], raw_x[r], mean[r], rstd[r], scale, of_gamma, of_beta, sums + r * kSums);
    }
    sum_of_team(sums, shape.team, of_warps[turn]);
    turn ^= 1;  // the other half: all threads pass a barrier before this one is written again
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (first + r >= shape.rows || !has_columns) continue;
      const float of_product = sums[r * kSums] * share;
      const float of_g = kCentred ? sums[r * kSums + kSums - 1] * share : 0.0f;
      float dx[V];
      row_grad(raw_dy[r], raw_x[r], mean[r], rstd[r], scale, of_g, of_product, dx);
      if (with.residual.p != nullptr) add_pack(raw_residual[r], dx);
      store(with.dx, (first + r) * shape.n + place, dx);
    }
  }
  if (with.sums != nullptr) write_block_sums<kSums>(shape, with.sums, of_teams, in_block, place, of_gamma, of_beta);
}

/// The gradients of the parameters, from the sums of all blocks.
struct NormGradTotals {
  const float* sums = nullptr;  ///< [blocks, parameters, n]
  int blocks = 0, n = 0, parameters = 0;
  SumOutput out[2];
};

inline __global__ void __launch_bounds__(32 * kAdders) add_norm_grads_kernel(NormGradTotals of) {
  __shared__ double shared[kAdders][32];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int lane = static_cast<int>(threadIdx.x) % 32, adder = static_cast<int>(threadIdx.x) / 32;
  const int width = of.n * of.parameters, column = static_cast<int>(blockIdx.x) * 32 + lane;
  double total = 0;
  if (column < width) {
#pragma unroll 8
    for (int b = adder; b < of.blocks; b += kAdders)
      total += __ldcg(&of.sums[static_cast<int64_t>(b) * width + column]);
  }
  shared[adder][lane] = total;
  __syncthreads();
  if (adder != 0 || column >= width) return;
  for (int a = 1; a < kAdders; ++a) total += shared[a][lane];
  const SumOutput& to = column < of.n ? of.out[0] : of.out[1];  // an index would put both in local memory
  to.write(column < of.n ? column : column - of.n, total);
}

// Launchers

/// The operands as the kernels access them; all have the type T.
template <bool kCentred, class T>
NormGradOperands<T> norm_grad_operands(const NormGradCall<CudaKernelCall>& grad, const TensorArg* gamma) {
  const std::vector<TensorArg>& in = grad.plain.in;
  NormGradOperands<T> with;
  with.dy = ref<T>(in[0]);
  with.x = ref<T>(in[1]);
  with.rstds = statistic(in[kCentred ? 3 : 2]);
  if (kCentred) with.means = statistic(in[2]);
  with.gamma.base = gamma != nullptr ? static_cast<float>(grad.plain.attrs.number("offset", 0)) : 1.0f;
  if (gamma != nullptr) with.gamma.p = ref<T>(*gamma);
  if (grad.residual != nullptr) with.residual = ref<T>(*grad.residual);
  with.dx = ref<T>(grad.plain.out[0]);
  return with;
}

/// Launches norm_grads_kernel and, for gradients of parameters, add_norm_grads_kernel.
template <bool kCentred, class T>
CudaKernel launch_norm_grads(const CudaKernelCall& call, const NormGradCall<CudaKernelCall>& grad,
                             const TensorArg* gamma) {
  constexpr int V = kPack<T>, kSums = kCentred ? 2 : 1;
  const TensorArg& x = grad.plain.in[1];
  NormGradShape shape;
  shape.rows = rows_of(x);
  shape.n = static_cast<int>(x.shape.back());
  shape.team = static_cast<int>(round_up(ceil_div(shape.n, V), 32));
  shape.teams = std::max(1, kNormGradThreads / shape.team);
  void (*kernel)(NormGradShape, NormGradOperands<T>) = norm_grads_kernel<V, kNormGradThreads, kCentred, T>;
  if (shape.team > kNormGradThreads) kernel = norm_grads_kernel<V, kMostNormGradThreads, kCentred, T>;
  const bool sums = !grad.parameters.empty();
  const auto threads = static_cast<unsigned>(shape.team * shape.teams);
  const int64_t block_bytes = int64_t{kSums} * shape.n * static_cast<int64_t>(sizeof(float));
  const auto shared = static_cast<size_t>(sums ? shape.teams * block_bytes : 0);
  ask_for_shared(kernel, shared, "norm_grads");
  int64_t blocks =
      std::min(blocks_at_once(kernel, threads, shared, "norm_grads"), ceil_div(shape.rows, shape.teams * kRowsAtOnce));
  if (sums) {
    blocks = std::min(blocks, kSumsScratch / block_bytes);
    call.scratch->need(blocks * block_bytes);
  }
  NormGradTotals totals;
  totals.blocks = static_cast<int>(blocks);
  totals.n = shape.n;
  totals.parameters = static_cast<int>(grad.parameters.size());
  for (int i = 0; i < totals.parameters; ++i) totals.out[i] = SumOutput::of(call, i + 1, 1.0);
  const NormGradOperands<T> operands = norm_grad_operands<kCentred, T>(grad, gamma);
  CudaScratch* const scratch = call.scratch;
  return [kernel, shape, operands, totals, threads, shared, scratch](CudaStream stream) {
    NormGradOperands<T> with = operands;
    NormGradTotals of = totals;
    if (of.parameters > 0) of.sums = with.sums = static_cast<float*>(scratch->memory());
    launch(kernel, dim3(static_cast<unsigned>(of.blocks)), dim3(threads), shared, stream, "norm_grads", shape, with);
    if (of.parameters == 0) return;
    const auto tiles = static_cast<unsigned>(ceil_div(int64_t{of.n} * of.parameters, 32));
    launch(add_norm_grads_kernel, dim3(tiles), dim3(32 * kAdders), 0, stream, "add_norm_grads", of);
  };
}

/// Null if the rows are not whole packs, are too long for one thread per pack, or if dtypes differ or are f16.
template <bool kCentred>
std::optional<CudaKernel> prepare_norm_grads(const CudaKernelCall& call, const NormGradCall<CudaKernelCall>& grad) {
  const std::vector<TensorArg>& in = grad.plain.in;
  const TensorArg &dy = in[0], &x = in[1], &dx = grad.plain.out[0];
  constexpr size_t kBeforeGamma = kCentred ? 4 : 3;
  const TensorArg* const gamma = in.size() > kBeforeGamma ? &in[kBeforeGamma] : nullptr;
  const TensorArg &side = gamma != nullptr ? *gamma : x, &more = grad.residual != nullptr ? *grad.residual : x;
  const int64_t n = x.shape.back();
  const bool one_type = dy.dtype == x.dtype && dx.dtype == x.dtype && side.dtype == x.dtype && more.dtype == x.dtype;
  const int pack = x.dtype == DType::f32 ? kPack<float> : kPack<bf16>;
  const bool fits = rows_of(x) > 0 && n % pack == 0 && n / pack <= kMostNormGradThreads &&
                    packs_are_aligned({&dy, &x, &dx, &side, &more});
  if (!one_type || !fits || x.dtype == DType::f16) return std::nullopt;
  if (x.dtype == DType::f32) return launch_norm_grads<kCentred, float>(call, grad, gamma);
  return launch_norm_grads<kCentred, bf16>(call, grad, gamma);
}

/// The gradient with its epilogue: in one pass, or else by `plain`, a sum, and the kernel `parameters`.
template <bool kCentred>
CudaKernel prepare_norm_grad(const CudaKernelCall& call, PrepareCudaKernel plain, const KernelDef& parameters) {
  const NormGradCall<CudaKernelCall> grad(call);
  if (!grad.has_epilogue()) return plain(call);
  if (std::optional<CudaKernel> whole = prepare_norm_grads<kCentred>(call, grad)) return *whole;
  std::vector<CudaKernel> kernels;
  const TensorArg& dx = grad.plain.out[0];
  if (!grad.parameters.empty())
    kernels.push_back(
        cuda::separate_kernel(parameters, grad.plain, grad.of_parameters(kCentred ? 2 : 1), grad.parameters));
  kernels.push_back(plain(grad.plain));
  if (grad.residual != nullptr)
    kernels.push_back(cuda::separate_kernel(residual_kernel(), grad.plain, {dx, *grad.residual}, {dx}));
  return cuda::in_order(std::move(kernels));
}

}  // namespace trainctl
