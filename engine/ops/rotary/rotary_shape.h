// The parameters that the kernels of rotary share.
#pragma once

#include <cmath>
#include <vector>

#include "engine/ops/kernel.h"

namespace trainctl {

inline constexpr int64_t kMostRotaryPairs = 128;

struct RotaryCall {
  int64_t b = 0, t = 0, units = 0, features = 0;  ///< features: per unit
  int64_t head_dim = 0, rotated = 0;
  int64_t first_row = 0;  ///< index in the whole
  bool interleaved = false, inverse = false;
  std::vector<double> rates = {};  ///< by pair: radians per row

  int64_t pairs() const { return head_dim / 2; }
  /// The features of pair i in a head: these two are this far apart.
  int64_t first_of(int64_t pair) const { return interleaved ? 2 * pair : pair; }
  int64_t apart() const { return interleaved ? 1 : pairs(); }
};

inline RotaryCall rotary_of(const KernelCall& call) {
  const TensorArg& x = call.in[0];
  RotaryCall r{.b = x.shape[0], .t = x.shape[1], .head_dim = call.attrs.integer("head_dim")};
  r.features = call.attrs.integer("heads", 1) * r.head_dim;
  r.units = x.shape[2] / r.features;
  r.rotated = call.attrs.integer("rotated", 1);
  r.first_row = x.offset.size() == 3 ? x.offset[1] : 0;
  r.interleaved = call.attrs.flag("interleaved");
  r.inverse = call.attrs.flag("inverse");
  for (int64_t i = 0; i < r.pairs(); ++i)
    r.rates.push_back(
        std::pow(call.attrs.number("base", 10000.0), -2.0 * static_cast<double>(i) / static_cast<double>(r.head_dim)));
  return r;
}

}  // namespace trainctl
