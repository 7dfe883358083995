// The place of a bucket's elements in whole parameters, for kernels whose results depend on it. Attr `parameters` has a
// list per parameter: its first element in the bucket, a key of its name, its number of dims n, then n sizes of this
// rank's part, n sizes of the whole parameter, and n offsets of the part in it. Attr `first`: the element of the bucket
// that is element 0 of the operands.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/base/error.h"
#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

struct PlacedParameter {
  static constexpr int kMostDims = 8;

  int64_t first = 0;  ///< in the bucket
  int64_t key = 0;
  int ndim = 0;
  int64_t local[kMostDims] = {}, global[kMostDims] = {}, offset[kMostDims] = {};

  /// Elements of this rank's part.
  TRAINCTL_HOST_DEVICE int64_t size() const {
    int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= local[d];
    return n;
  }
  TRAINCTL_HOST_DEVICE int64_t whole_size() const {
    int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= global[d];
    return n;
  }
  /// The last two dims are those of a matrix; a vector is one row.
  TRAINCTL_HOST_DEVICE int64_t rows() const { return ndim < 2 ? 1 : global[ndim - 2]; }
  TRAINCTL_HOST_DEVICE int64_t cols() const { return ndim < 1 ? 1 : global[ndim - 1]; }
  TRAINCTL_HOST_DEVICE int64_t matrices() const { return whole_size() / (rows() * cols()); }
  TRAINCTL_HOST_DEVICE int64_t local_rows() const { return ndim < 2 ? 1 : local[ndim - 2]; }
  TRAINCTL_HOST_DEVICE int64_t local_cols() const { return ndim < 1 ? 1 : local[ndim - 1]; }
  TRAINCTL_HOST_DEVICE int64_t first_col() const { return ndim < 1 ? 0 : offset[ndim - 1]; }

  /// Returns matrix * rows() + row of a row of this rank's part, counted over all dims but the last.
  TRAINCTL_HOST_DEVICE int64_t whole_row(int64_t local_row) const {
    int64_t row = 0, stride = 1;
    for (int d = ndim - 2; d >= 0; --d) {
      row += (local_row % local[d] + offset[d]) * stride;
      local_row /= local[d];
      stride *= global[d];
    }
    return row;
  }
  /// Returns the index in the whole parameter of an element of this rank's part.
  TRAINCTL_HOST_DEVICE int64_t whole_index(int64_t element) const {
    return whole_row(element / local_cols()) * cols() + element % local_cols() + first_col();
  }
};

inline std::vector<PlacedParameter> placed_parameters(const Attrs& attrs) {
  std::vector<PlacedParameter> all;
  for (const Ints& list : attrs.int_lists("parameters")) {
    check(list.size() >= 3 && list[2] >= 0 && list[2] <= PlacedParameter::kMostDims &&
              static_cast<int64_t>(list.size()) == 3 + 3 * list[2],
          "a placed parameter has a list of at most 8 dims");
    PlacedParameter p;
    p.first = list[0];
    p.key = list[1];
    p.ndim = static_cast<int>(list[2]);
    const auto n = static_cast<size_t>(p.ndim);
    for (size_t d = 0; d < n; ++d) {
      p.local[d] = list[3 + d];
      p.global[d] = list[3 + n + d];
      p.offset[d] = list[3 + 2 * n + d];
    }
    all.push_back(p);
  }
  return all;
}

/// The elements of a parameter that the operands of a call have: operand element i is element `begin + i - at` of this
/// rank's part.
struct PlacedRange {
  int64_t begin = 0, end = 0;  ///< in this rank's part of the parameter
  int64_t at = 0;              ///< operand element of `begin`

  int64_t size() const { return end - begin; }
};

inline PlacedRange placed_range(const PlacedParameter& p, int64_t first, int64_t elements) {
  const int64_t begin = std::max(p.first, first), end = std::min(p.first + p.size(), first + elements);
  if (begin >= end) return {};
  return {begin - p.first, end - p.first, begin - first};
}

}  // namespace trainctl
