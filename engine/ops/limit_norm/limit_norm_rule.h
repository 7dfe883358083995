// The ring of norms that limit_norm keeps, for CPUs and GPUs.
#pragma once

#include <math.h>

#include "engine/ops/loss_scale.h"

namespace trainctl {

struct NormRing {
  float* state;  ///< [2 + window]
  int window;

  TRAINCTL_HOST_DEVICE int count() const { return static_cast<int>(state[0]); }
  TRAINCTL_HOST_DEVICE const float* norms() const { return state + 2; }
  TRAINCTL_HOST_DEVICE void add(float norm) {
    const int next = static_cast<int>(state[1]);
    state[2 + next] = norm;
    state[1] = static_cast<float>((next + 1) % window);
    if (count() < window) state[0] += 1;
  }
  /// The number of norms before norm `i` in ascending order; of equal ones the first comes first.
  TRAINCTL_HOST_DEVICE int rank_of(int i) const {
    const float value = norms()[i];
    int before = 0;
    for (int j = 0; j < count(); ++j) before += norms()[j] < value || (norms()[j] == value && j < i) ? 1 : 0;
    return before;
  }
};

struct NormLimit {
  float limit;
  int least;
  GradientScale gradients = {};

  /// Limits the norm, given the usual one, or keeps it in the ring.
  TRAINCTL_HOST_DEVICE void apply(float* squared_norm, float usual, NormRing ring) const {
    if (!isfinite(*squared_norm)) return;
    const float norm = sqrtf(*squared_norm) * gradients.inverse();
    if (ring.count() >= least && usual > 0 && norm > limit * usual)
      *squared_norm = INFINITY;
    else
      ring.add(norm);
  }
};

}  // namespace trainctl
