// Fields that several layers share.
#pragma once

#include "engine/base/field.h"

namespace trainctl {

inline Field units_field() { return integer("units", "Output features.").at_least(1).at_most(kMaxSize); }
inline Field init_std_field() {
  return number("init_std", "Initial weights are normal with this deviation; else as in PyTorch.").above(0);
}
inline Field share_field() { return text("share", "A layer whose weight is used instead of its own."); }
inline Field eps_field() { return number("eps", "Keeps the division finite.").defaults(1e-5).above(0); }
inline Field affine_field() { return flag("affine", true, "Learn a scale and a shift."); }

}  // namespace trainctl
