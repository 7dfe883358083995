// The state of the loss's scale (precision: fp16) between two steps.
#pragma once

#include <cstdint>

namespace trainctl {

struct LossScaleState {
  double scale = 0;          ///< the next step's; 0: the loss is not scaled
  int64_t finite_steps = 0;  ///< consecutive steps with finite gradients since the scale changed
  int64_t skipped = 0;       ///< steps of the run whose gradients were not finite

  friend bool operator==(const LossScaleState&, const LossScaleState&) = default;
};

}  // namespace trainctl
