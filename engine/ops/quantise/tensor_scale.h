// One scale for a whole tensor in 8 bits (recipes tensor and delayed of precision: fp8), for CPUs and GPUs. A number is
// multiplied by the scale and rounded; its 8 bits times the inverse of the scale are the number again.
//
//   tensor    scale = largest / amax            amax: the largest magnitude of this tensor
//   delayed   scale = largest / amax / 2^margin amax: that of earlier steps
//
// `largest` is 448 for E4M3 and 57344 for E5M2. The scale is not a power of two, as in Transformer Engine and torchao.
//
// The state of a delayed scale: [2 + steps], the largest magnitude so far in this step, the scale (0: none yet, which
// counts as 1), and the largest magnitudes of the last steps, the newest first. Of a step whose largest magnitude is
// not finite 0 is kept, which changes no scale.
#pragma once

#include <math.h>

#include <cstdint>

#include "engine/ops/host_device.h"

namespace trainctl {

inline constexpr int64_t kAmaxPlace = 0, kScalePlace = 1, kHistoryPlace = 2;  ///< in the state

struct TensorScale {
  float scale, inverse;
};

TRAINCTL_HOST_DEVICE inline float largest_of_8_bits(bool e5m2) { return e5m2 ? 57344.0f : 448.0f; }

/// largest / amax, limited so that its inverse is no subnormal number.
TRAINCTL_HOST_DEVICE inline float scale_of_amax(float amax, float largest) {
  constexpr float kMost = 0x1p126f;
  const float scale = largest / amax;
  return scale < kMost ? scale : kMost;
}

/// Recipe tensor. With an infinity or NaN the inverse is not finite either, so that the products are not.
TRAINCTL_HOST_DEVICE inline TensorScale current_scale(float amax, bool e5m2) {
  if (!(amax <= 3.4028234663852886e38f)) return {1.0f, amax};
  if (amax == 0) return {1.0f, 1.0f};
  const float scale = scale_of_amax(amax, largest_of_8_bits(e5m2));
  return {scale, 1.0f / scale};
}

/// Recipe delayed.
TRAINCTL_HOST_DEVICE inline TensorScale delayed_scale(float scale) {
  return scale == 0 ? TensorScale{1.0f, 1.0f} : TensorScale{scale, 1.0f / scale};
}

/// An infinity as a NaN: rounding to 8 bits would make it the largest number.
TRAINCTL_HOST_DEVICE inline float not_infinite(float v) {
  return fabsf(v) <= 3.4028234663852886e38f ? v : static_cast<float>(NAN);
}

/// The end of a step with a delayed scale. The history moves by one step, and `amax`, the largest magnitude of the step
/// on all ranks, is kept first.
struct ScaleUpdate {
  float by_margin;  ///< 2^-margin
  bool most_recent, e5m2;

  TRAINCTL_HOST_DEVICE static float kept(float amax) { return amax <= 3.4028234663852886e38f ? amax : 0.0f; }

  /// `newest`: the first of the history; `most`: its largest.
  TRAINCTL_HOST_DEVICE void set_scale(float newest, float most, float* state) const {
    const float amax = most_recent ? newest : most;
    if (amax > 0) state[kScalePlace] = scale_of_amax(amax, largest_of_8_bits(e5m2)) * by_margin;
    state[kAmaxPlace] = 0;
  }
};

}  // namespace trainctl
