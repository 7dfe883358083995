// The elements of a dim of x that an element of y is made of, with their weights. Plain functions, safe in .cu files.
//
//   source position of element o   align_corners   o (n - 1) / (m - 1)
//                                  else            (o + 1/2) ratio - 1/2, at least 0; ratio = n / m, or 1 / scale
//                                  else, cubic: the same, also below 0
//   linear    the two elements around it; nearest: element floor(o ratio), whose product PyTorch computes in f32
//   cubic     the two elements on either side, weighted by Keys' kernel with a = -3/4; beyond the ends: the end
#pragma once

#include <cmath>

#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

struct InterpolateMap {
  int64_t n = 1;                                                    ///< elements of the whole dim of x
  double ratio = 1;                                                 ///< elements of x per element of y
  bool is_linear = false, align_corners = false, is_cubic = false;  ///< none of both: nearest

  /// y[o] = the sum of weights[k] * x[at[k]]; the elements are not distinct where they are beyond an end.
  static constexpr int kTaps = 4;
  struct Source {
    int64_t at[kTaps];
    float weights[kTaps];
  };
  TRAINCTL_HOST_DEVICE Source source(int64_t o) const {
    if (is_cubic) return cubic_source(o);
    if (!is_linear) {
      const auto at = static_cast<int64_t>(floorf(static_cast<float>(o) * static_cast<float>(ratio)));
      const int64_t i = at < n - 1 ? at : n - 1;
      return {{i, i, i, i}, {1.0f, 0.0f, 0.0f, 0.0f}};
    }
    double at = place_of(o);
    if (at < 0) at = 0;
    const auto below = static_cast<int64_t>(at);
    const int64_t i = below < n - 1 ? below : n - 1, next = i < n - 1 ? i + 1 : i;
    const auto weight = static_cast<float>(below < n - 1 ? at - static_cast<double>(below) : 0.0);
    return {{i, next, i, i}, {1.0f - weight, weight, 0.0f, 0.0f}};
  }
  /// The weight of element i of x in element o of y.
  TRAINCTL_HOST_DEVICE float weight_of(int64_t i, int64_t o) const {
    const Source s = source(o);
    float sum = 0;
    const int taps = is_cubic ? kTaps : 2;
    for (int k = 0; k < taps; ++k)
      if (s.at[k] == i) sum += s.weights[k];
    return sum;
  }

  /// A range of elements of y; for all others, the weight of element i of x is 0. `m`: number of elements of y.
  struct Targets {
    int64_t begin, end;
  };
  TRAINCTL_HOST_DEVICE Targets targets(int64_t i, int64_t m) const {
    if (ratio <= 0) return {0, m};
    const double reach = is_cubic ? 2.5 : 1.5;
    const double low = i == 0 ? 0.0 : (static_cast<double>(i) - reach) / ratio - 2.0,
                 high = i == n - 1 ? static_cast<double>(m) : (static_cast<double>(i) + reach) / ratio + 2.0;
    const auto begin = static_cast<int64_t>(low), end = static_cast<int64_t>(high) + 1;
    return {begin > 0 ? begin : 0, end < m ? end : m};
  }

 private:
  TRAINCTL_HOST_DEVICE double place_of(int64_t o) const {
    return align_corners ? static_cast<double>(o) * ratio : (static_cast<double>(o) + 0.5) * ratio - 0.5;
  }
  TRAINCTL_HOST_DEVICE int64_t inside(int64_t i) const { return i < 0 ? 0 : i < n ? i : n - 1; }
  TRAINCTL_HOST_DEVICE Source cubic_source(int64_t o) const {
    const double at = place_of(o), below = floor(at), t = at - below;
    const auto i = static_cast<int64_t>(below);
    return {{inside(i - 1), inside(i), inside(i + 1), inside(i + 2)},
            {static_cast<float>(outer_weight(1 + t)), static_cast<float>(inner_weight(t)),
             static_cast<float>(inner_weight(1 - t)), static_cast<float>(outer_weight(2 - t))}};
  }
  // Keys' kernel at a distance of up to 1, and of 1 to 2.
  static constexpr double kKeys = -0.75;
  TRAINCTL_HOST_DEVICE static double inner_weight(double d) { return ((kKeys + 2) * d - (kKeys + 3)) * d * d + 1; }
  TRAINCTL_HOST_DEVICE static double outer_weight(double d) {
    return ((kKeys * d - 5 * kKeys) * d + 8 * kKeys) * d - 4 * kKeys;
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
             call.attrs.flag("align_corners"), call.attrs.flag("cubic")};
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
