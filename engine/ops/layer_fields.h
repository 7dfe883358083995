// Fields that several layers share.
#pragma once

#include "engine/base/field.h"

namespace trainctl {

inline Field units_field() { return integer("units", "Number of output features.").at_least(1).at_most(kMaxSize); }
inline Field init_field() {
  return make_field("init", FieldKind::initial,
                    "Initial values of the weight (see below); PyTorch's defaults if "
                    "omitted.");
}
inline Field bias_init_field() {
  return make_field("bias_init", FieldKind::initial, "Initial values of the bias; PyTorch's defaults if omitted.");
}
inline Field share_field() { return text("share", "Another layer whose weight this layer uses (weight tying)."); }
inline Field eps_field() {
  return number("eps", "Small constant in the denominator for numerical stability.").defaults(1e-5).above(0);
}
inline Field affine_field() { return flag("affine", true, "Train a scale and a shift."); }
inline Field scale_init_field() {
  return make_field("init", FieldKind::initial, "Initial values of the scale (see below); ones if omitted.");
}
inline Field shift_init_field() {
  return make_field("bias_init", FieldKind::initial, "Initial values of the shift; zeros if omitted.");
}

}  // namespace trainctl
