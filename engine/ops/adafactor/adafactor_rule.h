// Adafactor as in PyTorch (Shazeer and Stern, 2018), for CPUs and GPUs. For a matrix W of R rows and C columns, the
// mean of whose squares per row and per column are r and c, with t counted from 1 and rate t^beta2_decay:
//
//   r += rate (mean of g^2 in the row - r);  c += rate (mean of g^2 in the column - c)
//   v = r c^T / max(mean(r), eps);  u = g / sqrt(max(v, eps^2))
//   a = max(rms_eps, rms(W)) min(lr, 1 / sqrt(t));  W -= lr wd W;  W -= a / max(1, rms(u) / max_update_rms) u
//
// rms is the root of the mean of squares. A vector keeps v itself: v += rate (g^2 - v).
//
//   sums     per parameter [matrices, R] of g^2, [matrices, C] of g^2 (not for a vector), [1] of W^2
//   states   per parameter [matrices, R], [matrices, C]
//   means    per parameter [matrices]: means of r
#pragma once

#include <math.h>

#include <vector>

#include "engine/ops/placed_parameters.h"

namespace trainctl {

/// A parameter's place in the bucket, and in sums, states, means and norms.
struct AdafactorPlace {
  PlacedParameter p;
  int64_t sums = 0, states = 0, means = 0, index = 0;

  TRAINCTL_HOST_DEVICE bool is_factored() const { return p.ndim >= 2; }
  TRAINCTL_HOST_DEVICE int64_t state_elements() const {
    return is_factored() ? p.matrices() * (p.rows() + p.cols()) : 0;
  }
  TRAINCTL_HOST_DEVICE int64_t weight_sum() const { return sums + state_elements(); }
};

inline std::vector<AdafactorPlace> adafactor_places(const Attrs& attrs) {
  std::vector<AdafactorPlace> places;
  AdafactorPlace next;
  for (const PlacedParameter& p : placed_parameters(attrs)) {
    next.p = p;
    places.push_back(next);
    next.sums += places.back().state_elements() + 1;
    next.states += places.back().state_elements();
    next.means += places.back().is_factored() ? p.matrices() : 0;
    ++next.index;
  }
  return places;
}

struct AdafactorRule {
  float eps, rms_eps, max_update_rms, decay;

  static AdafactorRule of(const Attrs& attrs) {
    return {static_cast<float>(attrs.number("eps")), static_cast<float>(attrs.number("rms_eps")),
            static_cast<float>(attrs.number("max_update_rms")), static_cast<float>(attrs.number("weight_decay"))};
  }
  TRAINCTL_HOST_DEVICE float variance(float row, float col, float mean) const {
    return row * (col / (mean > eps ? mean : eps));
  }
  TRAINCTL_HOST_DEVICE float change(float g, float variance_of_g) const {
    const float least = eps * eps;
    return g / sqrtf(variance_of_g > least ? variance_of_g : least);
  }
  /// The factor of a parameter's changes. `squares`: sums of W^2 and of u^2 over `elements`.
  TRAINCTL_HOST_DEVICE float step(double weight_squares, double change_squares, int64_t elements, float rate) const {
    const float weight_rms = static_cast<float>(sqrt(weight_squares / static_cast<double>(elements)));
    const float change_rms = static_cast<float>(sqrt(change_squares / static_cast<double>(elements)));
    const float excess = change_rms / max_update_rms;
    return (weight_rms > rms_eps ? weight_rms : rms_eps) * rate / (excess > 1.0f ? excess : 1.0f);
  }
};

}  // namespace trainctl
