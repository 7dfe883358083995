// The shapes of a call of gather or of its gradient. Plain functions, safe in .cu files.
#pragma once

#include "engine/ops/kernel.h"

namespace trainctl {

/// x is [outer, n, inner], the index [outer, count] or [outer, count, inner], y [outer, count, inner].
struct GatherCall {
  int64_t outer = 1, n = 1, count = 1, inner = 1;
  bool is_by_element = false;    ///< the index has the inner dims, too
  int64_t first = 0, whole = 1;  ///< the part of n on this rank: [first, first + n) of `whole`

  int64_t rows() const { return outer * count; }

  static GatherCall of(const KernelCall& call, const TensorArg& x, const TensorArg& index) {
    const auto dim = static_cast<size_t>(call.attrs.integer("dim"));
    GatherCall g;
    for (size_t d = 0; d < dim; ++d) g.outer *= x.shape[d];
    for (size_t d = dim + 1; d < x.shape.size(); ++d) g.inner *= x.shape[d];
    g.n = x.shape[dim];
    g.first = x.offset[dim];
    g.whole = x.global_shape[dim];
    g.count = index.shape[dim];
    g.is_by_element = index.shape.size() == x.shape.size() && g.inner > 1;
    return g;
  }
};

}  // namespace trainctl
