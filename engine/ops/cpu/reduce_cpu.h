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

  void run(const float* in, float* out, double scale, bool accumulate) const {
    if (row_ > 0) {
      sum_rows(in, out, scale, accumulate);
    } else {
      sum_columns(in, out, scale, accumulate);
    }
  }

 private:
  void sum_rows(const float* in, float* out, double scale, bool accumulate) const {
    kept_.run([&](const std::array<int64_t, 2>& at) {
      double total = 0;
      reduced_.run([&](const std::array<int64_t, 1>& from) {
        const float* row = in + at[0] + from[0];
        total += sum(row_, [row](int64_t i) { return double{row[i]}; });
      });
      float& to = out[at[1]];
      to = static_cast<float>((accumulate ? to : 0.0) + scale * total);
    });
  }

  void sum_columns(const float* in, float* out, double scale, bool accumulate) const {
    constexpr int64_t kTile = 256;
    kept_.run([&](const std::array<int64_t, 2>& at) {
      for (int64_t first = 0; first < columns_; first += kTile) {
        const int64_t count = std::min(kTile, columns_ - first);
        double total[kTile] = {};
        reduced_.run([&](const std::array<int64_t, 1>& from) {
          const float* row = in + at[0] + from[0] + first;
          for (int64_t i = 0; i < count; ++i) total[i] += row[i];
        });
        float* to = out + at[1] + first;
        for (int64_t i = 0; i < count; ++i) {
          to[i] = static_cast<float>((accumulate ? to[i] : 0.0) + scale * total[i]);
        }
      }
    });
  }

  Loops<2> kept_;
  Loops<1> reduced_;
  int64_t row_ = 0;      ///< contiguous elements summed into one; 0: the innermost dim is kept
  int64_t columns_ = 1;  ///< contiguous elements kept
};

}  // namespace trainctl::cpu
