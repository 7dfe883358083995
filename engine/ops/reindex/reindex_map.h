// Padding of a dim by elements of the tensor itself (circular, reflect, replicate; reindex.cpp): which element of x
// each element of the padded y is, and the inverse. Plain functions, safe in .cu files.
#pragma once

#include "engine/base/error.h"
#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

/// Tells how y continues beyond the ends of x, as the padding modes of PyTorch.
enum class Beyond : uint8_t { circular, reflect, replicate };

inline Beyond beyond_of(const Attrs& attrs) {
  const std::string mode = attrs.text("mode");
  return mode == "circular" ? Beyond::circular : mode == "reflect" ? Beyond::reflect : Beyond::replicate;
}

/// The dim has `n` elements in x and `m` in y, over all ranks; y begins `before` elements before x.
struct ReindexMap {
  Beyond beyond = Beyond::circular;
  int64_t n = 1, m = 1, before = 0;

  /// The index in x of the element that is at `o` in y.
  TRAINCTL_HOST_DEVICE int64_t source(int64_t o) const {
    int64_t i = o - before;
    if (beyond == Beyond::circular) return ((i % n) + n) % n;
    if (beyond == Beyond::replicate) return i < 0 ? 0 : i >= n ? n - 1 : i;
    if (i < 0) i = -i;
    return i >= n ? 2 * (n - 1) - i : i;
  }

  /// The inverse: calls f(o) for each index o of y at which element i of x is, always in the same order.
  template <class F>
  TRAINCTL_HOST_DEVICE void each_target(int64_t i, F f) const {
    const int64_t own = before + i;
    if (beyond == Beyond::circular) {
      for (int64_t o = ((own % n) + n) % n; o < m; o += n) f(o);
      return;
    }
    if (own >= 0 && own < m) f(own);
    if (beyond == Beyond::reflect) {
      const int64_t left = before - i, right = before + 2 * (n - 1) - i;
      if (i > 0 && left >= 0) f(left);
      if (i < n - 1 && right < m) f(right);
      return;
    }
    if (i == 0)
      for (int64_t o = 0; o < before; ++o) f(o);
    if (i == n - 1)
      for (int64_t o = own + 1; o < m; ++o) f(o);
  }
};

/// A call of reindex or its gradient: both tensors are [outer, dim, inner].
struct ReindexCall {
  ReindexMap map;
  int64_t outer = 1, inner = 1;
  int64_t x_first = 0, x_size = 1, y_first = 0, y_size = 1;  ///< the parts of this rank

  static ReindexCall of(const KernelCall& call, const TensorArg& x, const TensorArg& y) {
    const auto dim = static_cast<size_t>(call.attrs.integer("dim"));
    ReindexCall r{{beyond_of(call.attrs), x.global_shape[dim], y.global_shape[dim], call.attrs.integer("before")}};
    for (size_t d = 0; d < dim; ++d) r.outer *= x.shape[d];
    for (size_t d = dim + 1; d < x.shape.size(); ++d) r.inner *= x.shape[d];
    r.x_first = x.offset[dim];
    r.x_size = x.shape[dim];
    r.y_first = y.offset[dim];
    r.y_size = y.shape[dim];
    return r;
  }
};

}  // namespace trainctl
