// Products of sorted rows and their experts' matrices on a GPU, in tiles: in f32 arithmetic, and of bf16 on tensor
// cores (expert_tiles_cuda.cuh). Each is one launch for all experts; a block finds the expert of its tile.
#pragma once

#include "engine/ops/moe/expert_tiles_cuda.cuh"

namespace trainctl {

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

/// RowsProduct in f32. Blocks: (tiles of columns, tiles of rows of any expert).
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

/// SumOverRows in f32. Blocks: (tiles of columns of b, tiles of columns of a, experts).
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

/// RowsProduct of bf16. Blocks: (tiles of columns, tiles of rows of any expert).
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

/// SumOverRows of bf16. Blocks: (tiles of columns of b, tiles of columns of a, experts).
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

}  // namespace trainctl
