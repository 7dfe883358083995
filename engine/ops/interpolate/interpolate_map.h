// The elements of a dim of x that an element of y is made of, with their weights. Plain functions, safe in .cu files.
//
//   source position of element o   align_corners   o (n - 1) / (m - 1)
//                                  else            (o + 1/2) ratio - 1/2, at least 0; ratio = n / m, or 1 / scale
//   linear    the two elements around it; nearest: element floor(o ratio), whose product PyTorch computes in f32
#pragma once

#include <cmath>

#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

struct InterpolateMap {
  int64_t n = 1;     ///< elements of the whole dim of x
  double ratio = 1;  ///< elements of x per element of y
  bool is_linear = false, align_corners = false;

  /// y[o] = x[first] + weight * (x[next] - x[first]).
  struct Source {
    int64_t first, next;
    float weight;
  };
  TRAINCTL_HOST_DEVICE Source source(int64_t o) const {
    if (!is_linear) {
      const auto at = static_cast<int64_t>(floorf(static_cast<float>(o) * static_cast<float>(ratio)));
      const int64_t i = at < n - 1 ? at : n - 1;
      return {i, i, 0.0f};
    }
    double at = align_corners ? static_cast<double>(o) * ratio : (static_cast<double>(o) + 0.5) * ratio - 0.5;
    if (at < 0) at = 0;
    const auto below = static_cast<int64_t>(at);
    const int64_t i = below < n - 1 ? below : n - 1;
    const double weight = below < n - 1 ? at - static_cast<double>(below) : 0.0;
    return {i, i < n - 1 ? i + 1 : i, static_cast<float>(weight)};
  }
  /// The weight of element i of x in element o of y.
  TRAINCTL_HOST_DEVICE float weight_of(int64_t i, int64_t o) const {
    const Source s = source(o);
    return (s.first == i ? 1.0f - s.weight : 0.0f) + (s.next == i ? s.weight : 0.0f);
  }

  /// A range of elements of y, outside of which element i of x has the weight 0; `m`: elements of y.
  struct Targets {
    int64_t begin, end;
  };
  TRAINCTL_HOST_DEVICE Targets targets(int64_t i, int64_t m) const {
    if (ratio <= 0) return {0, m};
    const double low = i == 0 ? 0.0 : (static_cast<double>(i) - 1.5) / ratio - 2.0,
                 high = i == n - 1 ? static_cast<double>(m) : (static_cast<double>(i) + 1.5) / ratio + 2.0;
    const auto begin = static_cast<int64_t>(low), end = static_cast<int64_t>(high) + 1;
    return {begin > 0 ? begin : 0, end < m ? end : m};
  }
};

/// A call of interpolate or its gradient: both tensors are [outer, dim, inner].
struct InterpolateCall {
  InterpolateMap map;
  int64_t outer = 1, inner = 1, m = 1;
  int64_t x_first = 0, x_size = 1, y_first = 0, y_size = 1;  ///< the parts of this rank

  static InterpolateCall of(const KernelCall& call, const TensorArg& x, const TensorArg& y) {
    const auto dim = static_cast<size_t>(call.attrs.integer("dim"));
    InterpolateCall c;
    c.map = {x.global_shape[dim], call.attrs.number("ratio"), call.attrs.flag("linear"),
             call.attrs.flag("align_corners")};
    for (size_t d = 0; d < dim; ++d) c.outer *= x.shape[d];
    for (size_t d = dim + 1; d < x.shape.size(); ++d) c.inner *= x.shape[d];
    c.m = y.global_shape[dim];
    c.x_first = x.offset[dim];
    c.x_size = x.shape[dim];
    c.y_first = y.offset[dim];
    c.y_size = y.shape[dim];
    return c;
  }
};

}  // namespace trainctl
