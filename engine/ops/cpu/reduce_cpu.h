// Sums over dims of a contiguous tensor, in double, shared by reduce_sum, sum_to and bias_grad.
#pragma once

#include <algorithm>

#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/cpu/strided_cpu.h"

namespace trainctl::cpu {

/// out[kept] (+)= scale * sum over reduced of in[kept, reduced].
class SumOverDims {
 public:
  /// `out_strides`: the output's stride for each dim of `shape`; 0 if the dim is summed.
  SumOverDims(const Shape& shape, const Shape& out_strides) {
    const Shape strides = strides_of(shape);
    Loops<2> kept;
    Loops<1> reduced;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (out_strides[d] == 0) {
        reduced.add(shape[d], {strides[d]});
      } else {
        kept.add(shape[d], {strides[d], out_strides[d]});
      }
    }
    if (reduced.ndim > 0 && reduced.stride[reduced.ndim - 1][0] == 1) {
      std::array<int64_t, 1> inner{};
      row_ = reduced.take_inner(inner);
    } else {
      std::array<int64_t, 2> inner{};
      columns_ = kept.take_inner(inner);
    }
    kept_ = kept;
    reduced_ = reduced;
  }

  void run(const float* in, float* out, double scale, bool accumulate, int threads) const {
    if (row_ > 0) {
      sum_rows(in, out, scale, accumulate, threads);
    } else {
      sum_columns(in, out, scale, accumulate, threads);
    }
  }

 private:
  void sum_rows(const float* in, float* out, double scale, bool accumulate, int threads) const {
    over_outermost(threads, kept_, row_ * terms(), [&](const std::array<int64_t, 2>& at) {
      double total = 0;
      reduced_.run([&](const std::array<int64_t, 1>& from) {
        const float* row = in + at[0] + from[0];
        total += sum(row_, [row](int64_t i) { return double{row[i]}; });
      });
      float& to = out[at[1]];
      to = static_cast<float>((accumulate ? to : 0.0) + scale * total);
    });
  }

  void sum_columns(const float* in, float* out, double scale, bool accumulate, int threads) const {
    if (kept_.ndim > 0) {
      over_outermost(threads, kept_, columns_ * terms(), [&](const std::array<int64_t, 2>& at) {
        sum_columns(in + at[0], out + at[1], columns_, scale, accumulate);
      });
      return;
    }
    constexpr int64_t kLine = 16;
    over_rows(threads, (columns_ + kLine - 1) / kLine, kLine * terms(), [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kLine;
      sum_columns(in + first, out + first, std::min(columns_, end * kLine) - first, scale, accumulate);
    });
  }

  void sum_columns(const float* in, float* out, int64_t columns, double scale, bool accumulate) const {
    constexpr int64_t kTile = 256;
    for (int64_t first = 0; first < columns; first += kTile) {
      const int64_t count = std::min(kTile, columns - first);
      double total[kTile] = {};
      reduced_.run([&](const std::array<int64_t, 1>& from) {
        const float* row = in + from[0] + first;
        for (int64_t i = 0; i < count; ++i) total[i] += row[i];
      });
      float* to = out + first;
      for (int64_t i = 0; i < count; ++i) {
        to[i] = static_cast<float>((accumulate ? to[i] : 0.0) + scale * total[i]);
      }
    }
  }

  /// Runs of the loops over summed dims.
  int64_t terms() const {
    int64_t count = 1;
    for (int d = 0; d < reduced_.ndim; ++d) count *= reduced_.size[d];
    return count;
  }

  Loops<2> kept_;
  Loops<1> reduced_;
  int64_t row_ = 0;      ///< contiguous elements summed into one; 0: the innermost dim is kept
  int64_t columns_ = 1;  ///< contiguous elements kept
};

}  // namespace trainctl::cpu
