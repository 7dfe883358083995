// Clipping by global norm (torch.nn.utils.clip_grad_norm_) or by value (clip_grad_value_), and steps that are skipped
// because a gradient is not finite; shared by the optimizer kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/error.h"
#include "engine/ops/loss_scale.h"

namespace trainctl::cpu {

struct Clip {
  float norm = 0;                       ///< the largest global norm; 0: no clipping by norm
  float value = 0;                      ///< the largest absolute value of an element; 0: no clipping by value
  bool skips_not_finite = false;        ///< a step whose gradients are not all finite changes nothing
  const float* squared_norm = nullptr;  ///< [1], over all gradients of the job
  GradientScale gradients = {};

  /// The factor of every gradient in this step.
  float scale() const {
    const float inverse = gradients.inverse();
    return norm > 0 ? inverse * std::min(1.0f, norm / (std::sqrt(*squared_norm) * inverse + 1e-6f)) : inverse;
  }
  /// Clips gradients by value, before their factor; keeps NaN.
  struct Bound {
    float most;
    float operator()(float g) const {
      const float above = g < -most ? -most : g;
      return above > most ? most : above;
    }
  };
  /// The bound of this step, which loops over elements take once.
  Bound bound() const { return {value > 0 ? gradients.scaled(value) : std::numeric_limits<float>::infinity()}; }
  float bounded(float g) const { return bound()(g); }
  /// True if this step changes neither weights nor states.
  bool skips() const { return skips_not_finite && !std::isfinite(*squared_norm); }
};

inline Clip clip_of(const KernelCall& call) {
  Clip clip{.norm = static_cast<float>(call.attrs.number("clip_norm", 0.0)),
            .value = static_cast<float>(call.attrs.number("clip_value", 0.0)),
            .skips_not_finite = call.attrs.flag("skip_not_finite"),
            .gradients = GradientScale::of(call)};
  if (clip.norm <= 0 && !clip.skips_not_finite) return clip;
  check(call.in.size() > 1, "clip_norm and skip_not_finite need the squared global norm as second input");
  clip.squared_norm = call.in[1].as<float>();
  return clip;
}

}  // namespace trainctl::cpu
