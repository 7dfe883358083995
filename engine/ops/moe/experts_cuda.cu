// The experts on GPUs: pairs of a token and an expert are sorted into rows, the products of all experts are one launch
// of tiles over ragged rows, and each token adds up its rows in the order of its slots. Products of bf16 run on tensor
// cores, on Hopper as warp groups compute them (grouped_products_cuda.h), elsewhere by expert_tiles_cuda.cuh; others
// run in f32 arithmetic.
#include "engine/ops/moe/expert_activation_cuda.cuh"
#include "engine/ops/moe/expert_rows_cuda.cuh"
#include "engine/ops/moe/expert_tiles_cuda.cuh"
#include "engine/ops/moe/grouped_products_cuda.h"

namespace trainctl {
namespace {

constexpr int kExpertTile = 64, kExpertDepth = 16, kExpertThreads = 256, kTileOfThread = 4;

/// Rows of an operand: row i is that of its pair's token, if `pairs` is given, times the pair's weight, if that is
/// given.
struct ExpertOperand {
  Ref<Mixed> data;
  int64_t width = 0;
  const int* pairs = nullptr;
  int top_k = 1;
  Ref<Mixed> weights = {};

  __device__ float at(int64_t row, int64_t column) const {
    const int64_t place = pairs == nullptr ? row : pairs[row] / top_k;
    const float v = value(data, place * width + column);
    return weights.p == nullptr ? v : v * value(weights, pairs[row]);
  }
};

/// The 64 x 64 results of a block: each thread has 4 x 4, from 16 terms at a time in shared memory.
struct ExpertTileMemory {
  float a[kExpertDepth][kExpertTile + 1], b[kExpertDepth][kExpertTile + 1];
};

__device__ inline void multiply_terms(const ExpertTileMemory& memory, float (&sums)[kTileOfThread][kTileOfThread]) {
  const int m = static_cast<int>(threadIdx.x) / 16 * kTileOfThread,
            n = static_cast<int>(threadIdx.x) % 16 * kTileOfThread;
#pragma unroll
  for (int k = 0; k < kExpertDepth; ++k) {
#pragma unroll
    for (int i = 0; i < kTileOfThread; ++i) {
#pragma unroll
      for (int j = 0; j < kTileOfThread; ++j) sums[i][j] = fmaf(memory.a[k][m + i], memory.b[k][n + j], sums[i][j]);
    }
  }
}

/// The rows [first, first + count) of one expert that a block computes.
struct RowTile {
  int expert, first, count;
};
__device__ inline RowTile find_tile(const int* starts, int experts, int tile) {
  for (int e = 0; e < experts; ++e) {
    const int rows = starts[e + 1] - starts[e], tiles = (rows + kExpertTile - 1) / kExpertTile;
    if (tile < tiles) return {e, starts[e] + tile * kExpertTile, min(kExpertTile, rows - tile * kExpertTile)};
    tile -= tiles;
  }
  return {-1, 0, 0};
}

/// c[row, n] = sum over k of a[row, k] * b[expert of the row][n, k], or [k, n] if b is not transposed.
struct RowsProduct {
  ExpertOperand a;
  Ref<Mixed> b, c;
  int64_t n, k;
  bool transposed;
};

__global__ void __launch_bounds__(kExpertThreads) rows_product_kernel(RowsProduct p, const int* starts, int experts) {
  __shared__ ExpertTileMemory memory;
  wait_for_kernel_before();
  let_next_kernel_start();
  const RowTile tile = find_tile(starts, experts, static_cast<int>(blockIdx.y));
  if (tile.expert < 0) return;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kExpertTile;
  const Ref<Mixed> b = from(p.b, tile.expert * p.n * p.k);
  float sums[kTileOfThread][kTileOfThread] = {};
  for (int64_t k0 = 0; k0 < p.k; k0 += kExpertDepth) {
    for (int i = static_cast<int>(threadIdx.x); i < kExpertTile * kExpertDepth; i += kExpertThreads) {
      const int line = i / kExpertDepth, k = i % kExpertDepth;
      memory.a[k][line] = line < tile.count && k0 + k < p.k ? p.a.at(tile.first + line, k0 + k) : 0.0f;
      const int kb = p.transposed ? k : i / kExpertTile, nb = p.transposed ? line : i % kExpertTile;
      const bool valid = column + nb < p.n && k0 + kb < p.k;
      memory.b[kb][nb] =
          valid ? value(b, p.transposed ? (column + nb) * p.k + k0 + kb : (k0 + kb) * p.n + column + nb) : 0.0f;
    }
    __syncthreads();
    multiply_terms(memory, sums);
    __syncthreads();
  }
  const int m = static_cast<int>(threadIdx.x) / 16 * kTileOfThread,
            n = static_cast<int>(threadIdx.x) % 16 * kTileOfThread;
  for (int i = 0; i < kTileOfThread; ++i) {
    for (int j = 0; j < kTileOfThread; ++j)
      if (m + i < tile.count && column + n + j < p.n) set(p.c, (tile.first + m + i) * p.n + column + n + j, sums[i][j]);
  }
}

/// c[expert][m, n] (+)= sum over the rows of the expert of a[row, m] * b[row, n].
struct SumOverRows {
  ExpertOperand a, b;
  Ref<Mixed> c;
  bool adds;
};

__global__ void __launch_bounds__(kExpertThreads) sum_over_rows_kernel(SumOverRows p, const int* starts) {
  __shared__ ExpertTileMemory memory;
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t expert = blockIdx.z, line = static_cast<int64_t>(blockIdx.y) * kExpertTile,
                column = static_cast<int64_t>(blockIdx.x) * kExpertTile;
  float sums[kTileOfThread][kTileOfThread] = {};
  const int end = starts[expert + 1];
  for (int row = starts[expert]; row < end; row += kExpertDepth) {
    for (int i = static_cast<int>(threadIdx.x); i < kExpertTile * kExpertDepth; i += kExpertThreads) {
      const int k = i / kExpertTile, place = i % kExpertTile;
      const bool here = row + k < end;
      memory.a[k][place] = here && line + place < p.a.width ? p.a.at(row + k, line + place) : 0.0f;
      memory.b[k][place] = here && column + place < p.b.width ? p.b.at(row + k, column + place) : 0.0f;
    }
    __syncthreads();
    multiply_terms(memory, sums);
    __syncthreads();
  }
  const int m = static_cast<int>(threadIdx.x) / 16 * kTileOfThread,
            n = static_cast<int>(threadIdx.x) % 16 * kTileOfThread;
  for (int i = 0; i < kTileOfThread; ++i) {
    for (int j = 0; j < kTileOfThread; ++j) {
      if (line + m + i >= p.a.width || column + n + j >= p.b.width) continue;
      const int64_t at = (expert * p.a.width + line + m + i) * p.b.width + column + n + j;
      set(p.c, at, sums[i][j] + (p.adds ? value(p.c, at) : 0.0f));
    }
  }
}

// The same two products of bf16 on tensor cores.

/// 8 numbers of a row, zeros if `there` is false.
__device__ inline uint4 chunk_of_row(const ExpertOperand& operand, int64_t row, int64_t column, bool there) {
  if (!there) return {};
  const int64_t place = operand.pairs == nullptr ? row : operand.pairs[row] / operand.top_k;
  const uint4 chunk = load_16(static_cast<const bf16*>(operand.data.p) + place * operand.width + column);
  return operand.weights.p == nullptr ? chunk : weighted(chunk, value(operand.weights, operand.pairs[row]));
}

__device__ inline int line_of_warp() { return static_cast<int>(threadIdx.x) / 128 * 32; }
__device__ inline int column_of_warp() { return static_cast<int>(threadIdx.x) / 32 % 4 * 32; }

template <bool kTransposed>
__global__ void __launch_bounds__(kGroupedThreads) grouped_rows_kernel(RowsProduct p, const int* starts, int experts) {
  __shared__ GroupedMemory memory;
  wait_for_kernel_before();
  let_next_kernel_start();
  const RowTile tile = find_tile(starts, experts, static_cast<int>(blockIdx.y));
  if (tile.expert < 0) return;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kGroupedColumns;
  const bf16* const b = static_cast<const bf16*>(p.b.p) + tile.expert * p.n * p.k;
  const WarpTile sums = grouped_tile<true, kTransposed>(
      memory, p.k, line_of_warp(), column_of_warp(),
      [&](int line, int64_t k) { return chunk_of_row(p.a, tile.first + line, k, line < tile.count && k < p.k); },
      [&](int line, int64_t k) {
        if (column + line >= p.n || k >= p.k) return uint4{};
        return load_16(b + (kTransposed ? (column + line) * p.k + k : k * p.n + column + line));
      });
  sums.for_each(line_of_warp(), column_of_warp(), [&](int line, int of_tile, float sum) {
    if (line < tile.count && column + of_tile < p.n) set(p.c, (tile.first + line) * p.n + column + of_tile, sum);
  });
}

__global__ void __launch_bounds__(kGroupedThreads) grouped_sums_kernel(SumOverRows p, const int* starts) {
  __shared__ GroupedMemory memory;
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t expert = blockIdx.z, first_line = static_cast<int64_t>(blockIdx.y) * kGroupedLines,
                first_column = static_cast<int64_t>(blockIdx.x) * kGroupedColumns;
  const int begin = starts[expert], rows = starts[expert + 1] - begin;
  const WarpTile sums = grouped_tile<false, false>(
      memory, rows, line_of_warp(), column_of_warp(),
      [&](int line, int64_t row) {
        return chunk_of_row(p.a, begin + row, first_line + line, row < rows && first_line + line < p.a.width);
      },
      [&](int column, int64_t row) {
        return chunk_of_row(p.b, begin + row, first_column + column, row < rows && first_column + column < p.b.width);
      });
  sums.for_each(line_of_warp(), column_of_warp(), [&](int line, int column, float sum) {
    if (first_line + line >= p.a.width || first_column + column >= p.b.width) return;
    const int64_t at = (expert * p.a.width + first_line + line) * p.b.width + first_column + column;
    set(p.c, at, sum + (p.adds ? value(p.c, at) : 0.0f));
  });
}

/// The expert of a row: the last one that begins at it or before it.
__device__ inline int expert_of_row(const int* starts, int experts, int row) {
  int first = 0, end = experts;
  while (end - first > 1) {
    const int middle = (first + end) / 2;
    if (starts[middle] <= row)
      first = middle;
    else
      end = middle;
  }
  return first;
}

/// Adds the bias [experts, inner] to u, if it is given, and writes a of it. A block computes one row.
__global__ void __launch_bounds__(kExpertThreads)
    activate_kernel(ExpertActivation activation, const int* starts, int experts, int64_t hidden, Ref<Mixed> bias,
                    Ref<Mixed> u, Ref<Mixed> a) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = blockIdx.x;
  if (row >= starts[experts]) return;
  const bool gated = is_gated(activation), has_bias = bias.p != nullptr;
  const int64_t inner = gated ? 2 * hidden : hidden;
  const int64_t at = row * inner,
                at_bias = has_bias ? expert_of_row(starts, experts, static_cast<int>(row)) * inner : 0;
  const auto part = [&](int64_t i) {
    if (!has_bias) return value(u, at + i);
    set(u, at + i, value(u, at + i) + value(bias, at_bias + i));
    return value(u, at + i);
  };
  for (int64_t i = threadIdx.x; i < hidden; i += kExpertThreads) {
    const float gate = part(i), other = gated ? part(hidden + i) : 0.0f;
    set(a, row * hidden + i, activated_pair(activation, gate, other).a);
  }
}

/// Adds the bias [experts, features] to rows, times the weight of the row's pair if weights are given. A block computes
/// one row.
__global__ void __launch_bounds__(kExpertThreads)
    add_down_bias_kernel(ExpertRowsRef rows, int experts, int64_t features, Ref<Mixed> bias, Ref<Mixed> weights,
                         Ref<Mixed> made) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = blockIdx.x;
  if (row >= rows.starts[experts]) return;
  const int64_t of_expert = expert_of_row(rows.starts, experts, static_cast<int>(row)) * features;
  const float weight = weights.p == nullptr ? 1.0f : value(weights, rows.pair_of[row]);
  for (int64_t i = threadIdx.x; i < features; i += kExpertThreads)
    set(made, row * features + i, value(made, row * features + i) + weight * value(bias, of_expert + i));
}

/// Adds dy . bias of the row's expert to the gradient of its pair's weight. A warp computes one row.
__global__ void __launch_bounds__(kExpertThreads)
    down_bias_weight_grad_kernel(ExpertRowsRef rows, int experts, int64_t most_rows, int64_t features, Ref<Mixed> bias,
                                 Ref<Mixed> dy, Ref<Mixed> dweights) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kExpertThreads / 32) + threadIdx.x / 32;
  if (row >= most_rows || row >= rows.starts[experts]) return;
  const int64_t of_expert = expert_of_row(rows.starts, experts, static_cast<int>(row)) * features;
  const int64_t of_token = rows.token_of[row] * features;
  const int pair = rows.pair_of[row];
  float dot = 0;
  for (int64_t i = threadIdx.x % 32; i < features; i += 32) dot += value(dy, of_token + i) * value(bias, of_expert + i);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, step);
  if (threadIdx.x % 32 == 0) set(dweights, pair, value(dweights, pair) + dot);
}

/// to [experts, columns] (+)= the sum of the rows of each expert; 0 if `is_here` is false, because another rank has the
/// sums. A thread computes one column of one expert (blockIdx.y).
__global__ void __launch_bounds__(kExpertThreads)
    sum_bias_kernel(const int* starts, int64_t columns, ExpertOperand rows, bool is_here, Ref<Mixed> to, bool adds) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kExpertThreads + threadIdx.x;
  const int expert = static_cast<int>(blockIdx.y);
  if (column >= columns) return;
  float sum = 0;
  for (int row = starts[expert]; is_here && row < starts[expert + 1]; ++row) sum += rows.at(row, column);
  const int64_t at = expert * columns + column;
  set(to, at, sum + (adds ? value(to, at) : 0.0f));
}

/// a, du and the gradient of the pair's weight, of u and da. A block computes one row.
__global__ void __launch_bounds__(kExpertThreads)
    activate_grad_kernel(ExpertActivation activation, ExpertRowsRef rows, int experts, int64_t hidden,
                         Ref<Mixed> weights, Ref<Mixed> u, Ref<Mixed> da, Ref<Mixed> a, Ref<Mixed> du,
                         Ref<Mixed> dweights) {
  __shared__ float sums[kExpertThreads / 32];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = blockIdx.x;
  if (row >= rows.starts[experts]) return;
  const bool gated = is_gated(activation);
  const int64_t inner = gated ? 2 * hidden : hidden;
  const int pair = rows.pair_of[row];
  const float weight = value(weights, pair);
  float dot = 0;
  for (int64_t i = threadIdx.x; i < hidden; i += kExpertThreads) {
    const float other = gated ? value(u, row * inner + hidden + i) : 0.0f, g = value(da, row * hidden + i);
    const ActivatedPair of = activated_pair(activation, value(u, row * inner + i), other);
    dot += g * of.a;
    set(a, row * hidden + i, of.a);
    set(du, row * inner + i, weight * g * of.slope);
    if (gated) set(du, row * inner + hidden + i, weight * g * of.other_slope);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = dot;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float total = 0;
  for (const float sum : sums) total += sum;
  set(dweights, pair, total);
}

/// y[t] = sum of the token's rows, times their weights if those are given. Pairs of other ranks get 0 in dweights, if
/// that is given. A block computes one token.
__global__ void __launch_bounds__(kExpertThreads)
    combine_kernel(const int* row_of, int top_k, int64_t features, Ref<Mixed> rows, Ref<Mixed> weights, Ref<Mixed> y,
                   Ref<Mixed> dweights) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t pair = static_cast<int64_t>(blockIdx.x) * top_k;
  for (int64_t i = threadIdx.x; i < features; i += kExpertThreads) {
    float sum = 0;
    for (int j = 0; j < top_k; ++j) {
      const int64_t row = row_of[pair + j];
      if (row < 0) continue;
      const float v = value(rows, row * features + i);
      sum += weights.p == nullptr ? v : v * value(weights, pair + j);
    }
    set(y, blockIdx.x * features + i, sum);
  }
  if (dweights.p == nullptr) return;
  for (int j = static_cast<int>(threadIdx.x); j < top_k; j += kExpertThreads)
    if (row_of[pair + j] < 0) set(dweights, pair + j, 0.0f);
}

// The same for rows of bf16 in packs of 8 numbers.

/// A warp computes one row. a is multiplied by the pair's weight, so that its sums over rows need no weighted gradient
/// of y. Clears a and du of the rows behind the last one.
template <ExpertActivation A>
__global__ void __launch_bounds__(kExpertThreads)
    activate_grad_packs_kernel(ExpertRowsRef rows, int experts, int64_t most_rows, int64_t hidden, Ref<Mixed> weights,
                               Ref<bf16> u, Ref<bf16> da, Ref<bf16> a, Ref<bf16> du, Ref<Mixed> dweights) {
  wait_for_kernel_before();
  let_next_kernel_start();
  constexpr bool kGated = is_gated(A);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kExpertThreads / 32) + threadIdx.x / 32;
  const int end = rows.starts[experts], lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= most_rows || row >= end + grouped::kRowsRead) return;
  const int64_t at = row * hidden, at_inner = kGated ? 2 * at : at;
  const bool there = row < end;
  const int pair = there ? rows.pair_of[row] : 0;
  const float weight = there ? value(weights, pair) : 0.0f;
  float dot = 0;
  for (int64_t i = 8 * lane; i < hidden; i += 8 * 32) {
    Raw<bf16, 8> raw[3] = {};
    if (there) {
      raw[0] = fetch<8>(u, at_inner + i);
      if constexpr (kGated) raw[1] = fetch<8>(u, at_inner + hidden + i);
      raw[2] = fetch<8>(da, at + i);
    }
    float gate[8], other[8], g[8], to_a[8], to_gate[8], to_other[8];
    unpack(raw[0], gate);
    unpack(raw[1], other);
    unpack(raw[2], g);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const ActivatedPair of = activated_pair<A>(gate[j], other[j]);
      dot += g[j] * of.a;
      to_a[j] = weight * of.a;
      to_gate[j] = weight * g[j] * of.slope;
      to_other[j] = weight * g[j] * of.other_slope;
    }
    store(a, at + i, to_a);
    store(du, at_inner + i, to_gate);
    if constexpr (kGated) store(du, at_inner + hidden + i, to_other);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, step);
  if (there && lane == 0) set(dweights, pair, dot);
}

/// A thread computes 8 features of a token.
__global__ void __launch_bounds__(kExpertThreads)
    combine_packs_kernel(const int* row_of, int64_t tokens, int top_k, int packs, Ref<bf16> rows, Ref<Mixed> weights,
                         Ref<bf16> y, Ref<Mixed> dweights) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kExpertThreads + threadIdx.x, token = i / packs;
  if (token >= tokens) return;
  const int pack = static_cast<int>(i % packs);
  const int64_t pair = token * top_k;
  float sums[8] = {};
  constexpr int kAtOnce = 4;  // loads in flight
  for (int first = 0; first < top_k; first += kAtOnce) {
    Raw<bf16, 8> raw[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t row = first + j < top_k ? row_of[pair + first + j] : -1;
      raw[j].q = {};
      if (row >= 0) raw[j] = fetch<8>(rows, (row * packs + pack) * 8);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const bool weighted = weights.p != nullptr && first + j < top_k;
      const float weight = weighted ? value(weights, pair + first + j) : 1.0f;
      float v[8];
      unpack(raw[j], v);
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[e] += weight * v[e];
    }
  }
  store(y, (token * packs + pack) * 8, sums);
  if (dweights.p == nullptr) return;
  for (int j = pack; j < top_k; j += packs)
    if (row_of[pair + j] < 0) set(dweights, pair + j, 0.0f);
}

// Launchers

unsigned grid(int64_t count) {
  check(count <= INT32_MAX, "moe: too many rows for one launch");
  return static_cast<unsigned>(count);
}

/// Takes parts of the scratch memory one after another.
class ScratchParts {
 public:
  ScratchParts(const CudaScratch& scratch, bool is_bf16)
      : next_(static_cast<char*>(scratch.memory())), is_bf16_(is_bf16) {}
  void* take(int64_t bytes) {
    void* const here = next_;
    next_ += (bytes + 255) / 256 * 256;
    return here;
  }
  Ref<Mixed> numbers(int64_t count) { return {take(count * (is_bf16_ ? 2 : 4)), is_bf16_}; }

 private:
  char* next_;
  bool is_bf16_;
};

/// bf16 whose rows of this width are aligned to 16 bytes.
bool suits_tensor_cores(Ref<Mixed> operand, int64_t width) {
  return operand.is_bf16 && width % kChunk == 0 && reinterpret_cast<uintptr_t>(operand.p) % 16 == 0;
}

Ref<bf16> packs_of(Ref<Mixed> operand) { return {static_cast<bf16*>(operand.p)}; }

/// Calls run with the activation as a constant.
template <class Run>
void with_activation(ExpertActivation activation, Run run) {
  using enum ExpertActivation;
  switch (activation) {
    case clamped_swiglu:
      return run(std::integral_constant<ExpertActivation, clamped_swiglu>{});
    case swiglu:
      return run(std::integral_constant<ExpertActivation, swiglu>{});
    case geglu:
      return run(std::integral_constant<ExpertActivation, geglu>{});
    case silu:
      return run(std::integral_constant<ExpertActivation, silu>{});
    case gelu:
      return run(std::integral_constant<ExpertActivation, gelu>{});
    case relu:
      return run(std::integral_constant<ExpertActivation, relu>{});
  }
}

/// The sizes and operands that both kernels share.
struct ExpertsLaunch {
  ExpertsSize n;
  ExpertActivation activation;
  CudaScratch* scratch;
  Ref<Mixed> x, weights, up, down;
  Ref<Mixed> up_bias = {}, down_bias = {};  ///< null: no biases, or another rank adds them
  const int32_t* ids;

  ExpertsLaunch(const CudaKernelCall& call, size_t first, const TensorArg& kept)
      : n(ExpertsSize::of(call.in[first + 2].shape, call.in[first + 3].shape, kept.shape)),
        activation(expert_activation(call.attrs)),
        scratch(call.scratch),
        x(ref<Mixed>(call.in[first])),
        weights(ref<Mixed>(call.in[first + 1])),
        up(ref<Mixed>(call.in[first + 3])),
        down(ref<Mixed>(call.in[first + 4])),
        ids(call.in[first + 2].as<int32_t>()) {
    n.first = call.in[first + 3].offset[0];
    n.adds_down_bias = call.in[first + 3].offset[2] == 0;
    const bool has_biases = call.in.size() == (first == 0 ? 7 : 8);
    if (has_biases && first == 0) up_bias = ref<Mixed>(call.in[5]);
    if (has_biases && n.adds_down_bias) down_bias = ref<Mixed>(call.in.back());
  }

  int experts() const { return static_cast<int>(n.experts); }
  int top_k() const { return static_cast<int>(n.top_k); }

  ExpertRowsRef sort(ScratchParts& parts, CudaStream stream) const {
    const ExpertRowsRef rows = ExpertRowsRef::at(static_cast<int*>(parts.take(4 * ints_of_rows(n))), n);
    const int64_t pairs = n.tokens * n.top_k;
    const int first = static_cast<int>(n.first), chunks = ExpertRowsRef::chunks(n);
    if (chunks > 0)
      launch(count_pairs_kernel, grid(chunks), kSortThreads, 0, stream, "experts", ids, pairs, first, experts(), rows);
    launch(sum_counts_kernel, grid(ceil_div(n.experts, kSortThreads / 32)), kSortThreads, 0, stream, "experts",
           experts(), chunks, rows);
    launch(find_starts_kernel, 1, 32, 0, stream, "experts", experts(), n.rows, rows);
    if (chunks > 0)
      launch(place_pairs_kernel, grid(chunks), kSortThreads, 0, stream, "experts", ids, pairs, top_k(), first,
             experts(), n.rows, rows);
    return rows;
  }

  /// y, and zeros in dweights for pairs of other ranks.
  void combine(const ExpertRowsRef& rows, Ref<Mixed> made, Ref<Mixed> of_pairs, Ref<Mixed> y, Ref<Mixed> dweights,
               CudaStream stream) const {
    if (n.tokens == 0) return;
    if (suits_tensor_cores(made, n.features) && suits_tensor_cores(y, n.features)) {
      const int packs = static_cast<int>(n.features / kChunk);
      launch(combine_packs_kernel, grid(ceil_div(n.tokens * packs, kExpertThreads)), kExpertThreads, 0, stream,
             "experts", rows.row_of, n.tokens, top_k(), packs, packs_of(made), of_pairs, packs_of(y), dweights);
      return;
    }
    launch(combine_kernel, grid(n.tokens), kExpertThreads, 0, stream, "experts", rows.row_of, top_k(), n.features, made,
           of_pairs, y, dweights);
  }

  /// Adds the first bias to u, and writes a.
  void activate(const ExpertRowsRef& rows, Ref<Mixed> u, Ref<Mixed> a, CudaStream stream) const {
    launch(activate_kernel, grid(n.rows), kExpertThreads, 0, stream, "experts", activation, rows.starts, experts(),
           n.hidden, up_bias, u, a);
  }

  /// Adds the second bias to rows, times the weights of their pairs if those are given.
  void add_down_bias(const ExpertRowsRef& rows, Ref<Mixed> made, Ref<Mixed> of_pairs, CudaStream stream) const {
    if (down_bias.p == nullptr) return;
    launch(add_down_bias_kernel, grid(n.rows), kExpertThreads, 0, stream, "experts", rows, experts(), n.features,
           down_bias, of_pairs, made);
  }

  void product(const RowsProduct& p, const ExpertRowsRef& rows, CudaStream stream) const {
    if (suits_tensor_cores(p.a.data, p.k) && suits_tensor_cores(p.b, p.n)) {
      const dim3 blocks(grid(ceil_div(p.n, kGroupedColumns)), grid(n.rows / kExpertTile + n.experts));
      launch(p.transposed ? grouped_rows_kernel<true> : grouped_rows_kernel<false>, blocks, kGroupedThreads, 0, stream,
             "experts", p, rows.starts, experts());
      return;
    }
    const dim3 blocks(grid(ceil_div(p.n, kExpertTile)), grid(n.rows / kExpertTile + n.experts));
    launch(rows_product_kernel, blocks, kExpertThreads, 0, stream, "experts", p, rows.starts, experts());
  }

  ExpertOperand by_token(Ref<Mixed> data, const ExpertRowsRef& rows) const {
    return {data, n.features, rows.pair_of, top_k(), {}};
  }

  void sum_rows(const SumOverRows& p, const ExpertRowsRef& rows, CudaStream stream) const {
    if (suits_tensor_cores(p.a.data, p.a.width) && suits_tensor_cores(p.b.data, p.b.width)) {
      const dim3 blocks(grid(ceil_div(p.b.width, kGroupedColumns)), grid(ceil_div(p.a.width, kGroupedLines)),
                        grid(n.experts));
      launch(grouped_sums_kernel, blocks, kGroupedThreads, 0, stream, "experts", p, rows.starts);
      return;
    }
    const dim3 blocks(grid(ceil_div(p.b.width, kExpertTile)), grid(ceil_div(p.a.width, kExpertTile)), grid(n.experts));
    launch(sum_over_rows_kernel, blocks, kExpertThreads, 0, stream, "experts", p, rows.starts);
  }
};

/// Whether grouped_products_cuda.h computes the experts, with these operands beside those of both kernels.
bool on_hopper(const ExpertsLaunch& e, std::initializer_list<Ref<Mixed>> operands) {
  const auto suits = [](Ref<Mixed> operand) { return suits_tensor_cores(operand, kChunk); };
  return suits(e.x) && suits(e.up) && suits(e.down) && std::all_of(operands.begin(), operands.end(), suits) &&
         grouped::applies(e.n, e.x.p);
}

grouped::Rows grouped_rows(const ExpertsSize& n, const ExpertRowsRef& rows) {
  return {rows.starts, rows.token_of, rows.pair_of, n.experts, n.rows};
}

CudaKernel experts_on_hopper(const ExpertsLaunch& e, Ref<Mixed> y, Ref<Mixed> kept) {
  return [e, y, kept](CudaStream stream) {
    const ExpertsSize& n = e.n;
    ScratchParts parts(*e.scratch, true);
    const ExpertRowsRef sorted = e.sort(parts, stream);
    const grouped::Rows rows = grouped_rows(n, sorted);
    const Ref<Mixed> a = parts.numbers(n.rows * n.hidden), made = parts.numbers(n.rows * n.features);
    grouped::up_product(stream, rows, n, e.activation, e.x.p, e.up.p, kept.p, a.p);
    if (e.up_bias.p != nullptr) e.activate(sorted, kept, a, stream);  // once more, with the bias
    grouped::down_product(stream, rows, n, a.p, e.down.p, e.weights.p, e.weights.is_bf16, made.p);
    e.add_down_bias(sorted, made, e.weights, stream);
    e.combine(sorted, made, {}, y, {}, stream);
  };
}

/// Operands of experts_grad beside those of both kernels.
struct ExpertsGradient {
  Ref<Mixed> dy, kept, dx, dweights, dup, ddown;
  bool adds_up, adds_down;
  Ref<Mixed> dup_bias = {}, ddown_bias = {};  ///< null: no biases
  bool adds_up_bias = false, adds_down_bias = false;

  explicit ExpertsGradient(const CudaKernelCall& call)
      : dy(ref<Mixed>(call.in[0])),
        kept(ref<Mixed>(call.in[6])),
        dx(ref<Mixed>(call.out[0])),
        dweights(ref<Mixed>(call.out[1])),
        dup(ref<Mixed>(call.out[2])),
        ddown(ref<Mixed>(call.out[3])),
        adds_up(call.out[2].accumulate),
        adds_down(call.out[3].accumulate) {
    if (call.out.size() < 6) return;
    dup_bias = ref<Mixed>(call.out[4]), adds_up_bias = call.out[4].accumulate;
    ddown_bias = ref<Mixed>(call.out[5]), adds_down_bias = call.out[5].accumulate;
  }

  /// The gradients of the biases, and the second bias's part of those of the weights of pairs.
  void of_biases(const ExpertsLaunch& e, const ExpertRowsRef& rows, Ref<Mixed> du, CudaStream stream) const {
    if (dup_bias.p == nullptr) return;
    if (e.down_bias.p != nullptr && e.n.rows > 0)
      launch(down_bias_weight_grad_kernel, grid(ceil_div(e.n.rows, kExpertThreads / 32)), kExpertThreads, 0, stream,
             "experts_grad", rows, e.experts(), e.n.rows, e.n.features, e.down_bias, dy, dweights);
    const auto sum = [&](const ExpertOperand& of, bool is_here, Ref<Mixed> to, bool adds) {
      launch(sum_bias_kernel, dim3(grid(ceil_div(of.width, kExpertThreads)), grid(e.n.experts)), kExpertThreads, 0,
             stream, "experts_grad", rows.starts, of.width, of, is_here, to, adds);
    };
    ExpertOperand weighted_dy = e.by_token(dy, rows);
    weighted_dy.weights = e.weights;
    sum({du, e.n.inner()}, true, dup_bias, adds_up_bias);
    sum(weighted_dy, e.n.adds_down_bias, ddown_bias, adds_down_bias);
  }
};

CudaKernel experts_grad_on_hopper(const ExpertsLaunch& e, const ExpertsGradient& g) {
  return [e, g](CudaStream stream) {
    const ExpertsSize& n = e.n;
    ScratchParts parts(*e.scratch, true);
    const ExpertRowsRef sorted = e.sort(parts, stream);
    const grouped::Rows rows = grouped_rows(n, sorted);
    const Ref<Mixed> da = parts.numbers(n.rows * n.hidden), a = parts.numbers(n.rows * n.hidden),
                     du = parts.numbers(n.rows * n.inner()), made = parts.numbers(n.rows * n.features);
    const grouped::Operand dy{g.dy.p, n.features, true}, x{e.x.p, n.features, true}, of_u{du.p, n.inner(), false},
        of_a{a.p, n.hidden, false};
    grouped::product(stream, rows, dy, e.down.p, n.hidden, da.p);
    with_activation(e.activation, [&](auto activation) {
      launch(activate_grad_packs_kernel<activation.value>, grid(ceil_div(n.rows, kExpertThreads / 32)), kExpertThreads,
             0, stream, "experts_grad", sorted, e.experts(), n.rows, n.hidden, e.weights, packs_of(g.kept),
             packs_of(da), packs_of(a), packs_of(du), g.dweights);
    });
    grouped::product(stream, rows, of_u, e.up.p, n.features, made.p);
    e.combine(sorted, made, {}, g.dx, g.dweights, stream);
    g.of_biases(e, sorted, du, stream);
    grouped::sum_over_rows(stream, rows, of_u, x, g.dup.p, g.dup.is_bf16, g.adds_up);
    grouped::sum_over_rows(stream, rows, dy, of_a, g.ddown.p, g.ddown.is_bf16, g.adds_down);
  };
}

}  // namespace

CudaKernel prepare_experts(const CudaKernelCall& call) {
  const ExpertsLaunch e(call, 0, call.out[1]);
  if (e.n.tokens == 0) return [](CudaStream) {};
  call.scratch->need(experts_scratch(e.n, false));
  if (on_hopper(e, {ref<Mixed>(call.out[0]), ref<Mixed>(call.out[1])}))
    return experts_on_hopper(e, ref<Mixed>(call.out[0]), ref<Mixed>(call.out[1]));
  return [e, y = ref<Mixed>(call.out[0]), kept = ref<Mixed>(call.out[1])](CudaStream stream) {
    const ExpertsSize& n = e.n;
    ScratchParts parts(*e.scratch, e.x.is_bf16);
    const ExpertRowsRef rows = e.sort(parts, stream);
    const Ref<Mixed> a = parts.numbers(n.rows * n.hidden), made = parts.numbers(n.rows * n.features);
    e.product({e.by_token(e.x, rows), e.up, kept, n.inner(), n.features, true}, rows, stream);
    e.activate(rows, kept, a, stream);
    e.product({{a, n.hidden}, e.down, made, n.features, n.hidden, true}, rows, stream);
    e.add_down_bias(rows, made, {}, stream);
    e.combine(rows, made, e.weights, y, {}, stream);
  };
}

CudaKernel prepare_experts_grad(const CudaKernelCall& call) {
  const ExpertsLaunch e(call, 1, call.in[6]);
  call.scratch->need(experts_scratch(e.n, true));
  const ExpertsGradient g(call);
  const auto starts = [](Ref<Mixed> operand) { return reinterpret_cast<uintptr_t>(operand.p) % 16 == 0; };
  if (on_hopper(e, {g.dy, g.kept, g.dx}) && starts(g.dup) && starts(g.ddown)) return experts_grad_on_hopper(e, g);
  return [e, g](CudaStream stream) {
    const ExpertsSize& n = e.n;
    ScratchParts parts(*e.scratch, e.x.is_bf16);
    const ExpertRowsRef rows = e.sort(parts, stream);
    const Ref<Mixed> da = parts.numbers(n.rows * n.hidden), a = parts.numbers(n.rows * n.hidden),
                     du = parts.numbers(n.rows * n.inner()), made = parts.numbers(n.rows * n.features);
    ExpertOperand weighted_dy = e.by_token(g.dy, rows);
    weighted_dy.weights = e.weights;
    e.product({e.by_token(g.dy, rows), e.down, da, n.hidden, n.features, false}, rows, stream);
    if (n.rows > 0)
      launch(activate_grad_kernel, grid(n.rows), kExpertThreads, 0, stream, "experts_grad", e.activation, rows,
             e.experts(), n.hidden, e.weights, g.kept, da, a, du, g.dweights);
    e.product({{du, n.inner()}, e.up, made, n.features, n.inner(), false}, rows, stream);
    e.combine(rows, made, {}, g.dx, g.dweights, stream);
    g.of_biases(e, rows, du, stream);
    e.sum_rows({{du, n.inner()}, e.by_token(e.x, rows), g.dup, g.adds_up}, rows, stream);
    e.sum_rows({weighted_dy, {a, n.hidden}, g.ddown, g.adds_down}, rows, stream);
  };
}

}  // namespace trainctl
