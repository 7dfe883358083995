// Fields that several layers share.
#pragma once

#include "engine/base/field.h"

namespace trainctl {

inline Field units_field() { return integer("units", "Output features.").at_least(1).at_most(kMaxSize); }
inline Field init_field() {
  return make_field("init", FieldKind::initial, "Initial values of the weight (below); else as in PyTorch.");
}
inline Field bias_init_field() {
  return make_field("bias_init", FieldKind::initial, "Initial values of the bias; else as in PyTorch.");
}
inline Field share_field() { return text("share", "A layer whose weight is used instead of its own."); }
inline Field eps_field() { return number("eps", "Keeps the division finite.").defaults(1e-5).above(0); }
inline Field affine_field() { return flag("affine", true, "Learn a scale and a shift."); }
inline Field scale_init_field() {
  return make_field("init", FieldKind::initial, "Initial values of the scale (below); else ones.");
}
inline Field shift_init_field() {
  return make_field("bias_init", FieldKind::initial, "Initial values of the shift; else zeros.");
}

}  // namespace trainctl
