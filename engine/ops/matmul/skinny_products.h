// Products with few columns of operands with many, as adapters have them. A pass over the large operand takes nearly
// all of their time, so each kernel reads it once:
//
//   skinny_grads         (dy [.., n], w [n, r], x [.., r]) -> dx [.., r] = factor dy w;  dw [n, r] = dy^T x
//   skinny_products      (x [.., n], a [r, n], ..) -> p [.., r] = factor x a^T, ..        for each a
//   skinny_weight_grads  (x [.., n], dp [.., r], ..) -> da [r, n] = dp^T x, ..            for each dp
//
// Gradients of weights are f32 or bf16 and can accumulate. On a GPU a block computes them for some columns and rows of
// the large operand; a second kernel adds the partial sums in their order.
#pragma once

#include <algorithm>

#include "engine/ops/kernel_def.h"

namespace trainctl {

extern const KernelDef skinny_grads_kernel, skinny_products_kernel, skinny_weight_grads_kernel;

/// The most operands with few columns, and columns of all of them together.
inline constexpr size_t kMostSkinny = 4;
inline constexpr int64_t kMostFeatures = 64;

/// The division of the large operand among blocks: the same on every card, so that results are.
struct SkinnyParts {
  static constexpr int64_t kBlocks = 264, kRows = 16;  ///< two blocks per multiprocessor of an H100

  int64_t features = 16;  ///< columns of all operands with few, rounded up
  int64_t columns = 512;  ///< columns per block
  int64_t column_parts = 1, row_parts = 1;
  int64_t rows_of_part = kRows;  ///< the last part may have fewer

  SkinnyParts(int64_t rows, int64_t n, int64_t r) {
    features = r <= 16 ? 16 : r <= 32 ? 32 : 64;
    columns = features < 64 ? 512 : 256;
    column_parts = (n + columns - 1) / columns;
    const int64_t tiles = std::max<int64_t>((rows + kRows - 1) / kRows, 1);
    const int64_t most = std::clamp<int64_t>(kBlocks / std::max<int64_t>(column_parts, 1), 1, tiles);
    rows_of_part = (tiles + most - 1) / most * kRows;
    row_parts = (rows + rows_of_part - 1) / rows_of_part;
  }
  /// Number of floats in the partial sums: [column_parts, rows, features] of rows, [row_parts, n, features] of weights.
  int64_t dx_floats(int64_t rows) const { return column_parts * rows * features; }
  int64_t dw_floats(int64_t n) const { return row_parts * n * features; }
};

}  // namespace trainctl
