// Muon (Jordan et al., 2024; torch.optim.Muon): m = momentum m + (1 - momentum) g; u = m, or with nesterov
// g + momentum (m - g); w = w (1 - lr wd) - lr adjust O, where O is u with its singular values moved close to 1 by five
// Newton-Schulz steps from X = u / |u|:
//
//   A = X X^T;  X = a X + (b A + c A A) X          a matrix with more rows than columns: A = X^T X;  X = a X + X (..)
#pragma once

#include <math.h>

#include <algorithm>
#include <vector>

#include "engine/base/round_up.h"
#include "engine/ops/host_device.h"
#include "engine/ops/whole_parameters.h"

namespace trainctl {

inline constexpr int kMuonSteps = 5;
inline constexpr float kMuonA = 3.4445f, kMuonB = -4.7750f, kMuonC = 2.0315f;
inline constexpr float kMuonLeastNorm = 1e-7f;

/// The matrices of the iteration in the work space, in elements: X twice, A, and b A + c A A. The same for f32, which
/// CPUs use, and for bf16.
struct MuonSpace {
  int64_t x0 = 0, x1 = 0, gram = 0, factor = 0, end = 0;

  explicit MuonSpace(const WholeParameter& p) {
    constexpr int64_t kLine = 64;
    const int64_t x = round_up(p.size(), kLine), side = std::min(p.rows, p.cols),
                  squares = round_up(side * side, kLine);
    x1 = x;
    gram = 2 * x;
    factor = gram + squares;
    end = factor + squares;
  }
};

struct MuonSettings {
  float momentum, rest, decay;
  bool nesterov, matches_adamw;

  static MuonSettings of(const Attrs& attrs) {
    const double momentum = attrs.number("momentum");
    return {static_cast<float>(momentum), static_cast<float>(1 - momentum),
            static_cast<float>(attrs.number("weight_decay")), attrs.flag("nesterov"), attrs.flag("matches_adamw")};
  }
  /// The factor of the learning rate.
  float adjust(const WholeParameter& p) const {
    const auto rows = static_cast<float>(p.rows), cols = static_cast<float>(p.cols);
    return matches_adamw ? 0.2f * std::sqrt(std::max(rows, cols)) : std::sqrt(std::max(1.0f, rows / cols));
  }
  TRAINCTL_HOST_DEVICE float moved(float g, float m) const { return momentum * m + rest * g; }
  TRAINCTL_HOST_DEVICE float direction(float g, float m) const { return nesterov ? g + momentum * (m - g) : m; }
};

}  // namespace trainctl
