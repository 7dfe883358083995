// Norms of rows x [.., n], with f32 statistics of each row: their sums and formulas, and their operands (parameters [n]
// are shared by all rows). If n is cut over ranks, each computes the sums of its part, and `stats` of all parts is
// [parts, rows, numbers of a row].
#pragma once

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/rows_cuda.cuh"

namespace trainctl {

// Functions for rows

/// Waits for a row that is only written.
template <int V, class... Operands>
__device__ void wait_for_row(const RowPart<V>& part, Operands&... operands) {
  read_row(
      part, [](auto...) {}, operands...);
}

/// The sum of the row; the first pass over it.
template <int V, class Operand>
__device__ float sum_of_row(RowGroup& group, const RowPart<V>& part, Operand& row) {
  float sum = 0;
  read_row(
      part, [&](int, const auto& a) { sum += sum_of_pack(a.v); }, row);
  return group.sum(sum);
}

/// The sum of (x - mean)^2; another pass over the row.
template <int V, class Operand>
__device__ float squares_about(float mean, RowGroup& group, const RowPart<V>& part, Operand& row) {
  float squares = 0;
  read_row_again(
      part,
      [&](int, const auto& a) {
        float sum_of_squares = 0;
        for (const float v : a.v) sum_of_squares += (v - mean) * (v - mean);
        squares += sum_of_squares;
      },
      row);
  return group.sum(squares);
}

/// The moments that normalise the elements of a row, or of a group of channels: xhat = (x - mean) * rstd.
struct Moments {
  float mean, rstd;

  template <int W>
  __device__ Pack<W> normalised(Pack<W> x, const Pack<W>& scale, const Pack<W>& shift) const {
    for (int j = 0; j < W; ++j) x.v[j] = (x.v[j] - mean) * rstd * scale.v[j] + shift.v[j];
    return x;
  }
  /// sums += (g, g * xhat), g = dy * scale
  template <int W>
  __device__ void add_grad_sums(Pack<W> dy, Pack<W> x, const Pack<W>& scale, float (&sums)[2]) const {
    for (int j = 0; j < W; ++j) {
      dy.v[j] *= scale.v[j];
      x.v[j] = dy.v[j] * ((x.v[j] - mean) * rstd);
    }
    sums[0] += sum_of_pack(dy.v);
    sums[1] += sum_of_pack(x.v);
  }
  /// dx, from the means of g and of g * xhat
  template <int W>
  __device__ Pack<W> grad(Pack<W> dy, const Pack<W>& x, const Pack<W>& scale, float of_g, float of_product) const {
    for (int j = 0; j < W; ++j) {
      dy.v[j] = rstd * (dy.v[j] * scale.v[j] - of_g - (x.v[j] - mean) * rstd * of_product);
    }
    return dy;
  }
};

/// A row's only number, summed over its parts.
__device__ inline float total_of_parts(const float* stats, int parts, int64_t rows, int64_t row) {
  float total = 0;
  for (int p = 0; p < parts; ++p) total += stats[p * rows + row];
  return total;
}
/// The same, over the elements of all parts of the row.
__device__ inline float mean_of_parts(const float* stats, int parts, const Rows& rows, int64_t row) {
  return total_of_parts(stats, parts, rows.count, row) / (static_cast<float>(rows.n) * static_cast<float>(parts));
}

// Operands

/// A parameter [n], plus `offset`; `otherwise` if it is absent.
template <class T>
RowSide<T> row_side(const TensorArg* arg, float otherwise, const Rows& rows, int pack, float offset = 0) {
  if (arg == nullptr) return {{}, otherwise};
  return {ref<T>(*arg), offset, pack > 1 && rows.before == 0 && rows.n % pack == 0 && packs_are_aligned({arg})};
}

/// Null if the call has fewer inputs.
inline const TensorArg* optional_input(const CudaKernelCall& call, size_t index) {
  return index < call.in.size() ? &call.in[index] : nullptr;
}

inline Ref<float> statistic(const TensorArg& arg) {
  check(arg.dtype == DType::f32, "statistics of rows are f32");
  return ref<float>(arg);
}

/// `stats` of all parts.
inline int parts_of(const TensorArg& stats) { return static_cast<int>(stats.shape[0]); }

inline int64_t rows_of(const TensorArg& x) { return x.shape.back() == 0 ? 0 : x.size() / x.shape.back(); }

}  // namespace trainctl
