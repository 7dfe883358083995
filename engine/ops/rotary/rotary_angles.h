// The angles of rotary, for any context extension that Hugging Face's config.json names in rope_scaling. Both devices
// read them from here.
#pragma once

#include <vector>

#include "engine/base/entry_types.h"

namespace trainctl {

struct RotaryAngles {
  std::vector<double> rates;  ///< by pair: radians per row
  double magnitude = 1;       ///< factor of the rotated features (attention_factor)
};

/// `features`: number of rotated features per head. `attrs`: those of the op rotary, whose names are those of
/// rotary_scaling_fields().
RotaryAngles rotary_angles(const Attrs& attrs, int64_t features);

/// The layer's fields `scaling`, `factor`, ..
std::vector<Field> rotary_scaling_fields();
std::vector<FieldFault> rotary_scaling_faults(const Attrs& attrs);

/// The attrs of the op from the layer's fields; empty without scaling. longrope has two lists of factors; `rows`, the
/// length of a sample, selects one of them (attr `factors`).
Attrs rotary_scaling_attrs(const Attrs& attrs, int64_t features, int64_t rows);

}  // namespace trainctl
