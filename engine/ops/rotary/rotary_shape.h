// The parameters that the kernels of rotary share.
#pragma once

#include "engine/ops/kernel.h"
#include "engine/ops/rotary/rotary_angles.h"

namespace trainctl {

inline constexpr int64_t kMostRotaryPairs = 128;

struct RotaryCall {
  int64_t b = 0, t = 0, units = 0, features = 0;  ///< features: per unit
  int64_t head_dim = 0, rotated = 0;
  int64_t rotary_dim = 0;  ///< the first features of a head are rotated, the others copied
  int64_t first_row = 0;   ///< index in the whole
  bool interleaved = false, inverse = false;
  RotaryAngles angles = {};

  int64_t pairs() const { return rotary_dim / 2; }
};

inline RotaryCall rotary_of(const KernelCall& call) {
  const TensorArg& x = call.in[0];
  RotaryCall r{.b = x.shape[0], .t = x.shape[1], .head_dim = call.attrs.integer("head_dim")};
  r.features = call.attrs.integer("heads", 1) * r.head_dim;
  r.units = x.shape[2] / r.features;
  r.rotated = call.attrs.integer("rotated", 1);
  r.rotary_dim = call.attrs.integer("rotary_dim", r.head_dim);
  r.first_row = x.offset.size() == 3 ? x.offset[1] : 0;
  r.interleaved = call.attrs.flag("interleaved");
  r.inverse = call.attrs.flag("inverse");
  r.angles = rotary_angles(call.attrs, r.rotary_dim);
  return r;
}

}  // namespace trainctl
