// The targets that label_smoothing and ignore_index make of the labels. With e = label_smoothing, the target of a row
// is 1 - e + e / c for its label and e / c for the c - 1 other classes. Rows whose label is ignore_index have loss 0
// and gradient 0, and the mean is over the others of the whole batch: StepScalars::label_weight.
#pragma once

#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

struct Targets {
  float smoothing = 0;
  bool ignores = false;
  int32_t ignored = 0;

  static Targets of(const Attrs& attrs) {
    return {static_cast<float>(attrs.number("label_smoothing", 0)), attrs.has("ignore_index"),
            static_cast<int32_t>(attrs.integer("ignore_index", 0))};
  }
  bool plain() const { return smoothing == 0 && !ignores; }
  TRAINCTL_HOST_DEVICE bool counts(int32_t label) const { return !ignores || label != ignored; }
  /// Multiplies the mean over all labels.
  TRAINCTL_HOST_DEVICE float weight(const StepScalars* scalars) const { return ignores ? scalars->label_weight : 1.0f; }
};

}  // namespace trainctl
