// The attributes of a router (op `route`: scores, and the choice of experts per token) for kernels on every device.
#pragma once

#include "engine/base/attrs.h"
#include "engine/ops/host_device.h"

namespace trainctl {

/// The formulas are in route.cpp.
struct Routing {
  int experts = 0, top_k = 0;      ///< number of experts, and number that each token chooses
  int groups = 1, top_groups = 1;  ///< number of groups of experts, and number from which a token chooses
  bool sigmoid = false;            ///< scores are sigmoids of the logits, otherwise their softmax
  bool normalize = false;          ///< weights are divided by the sum of the chosen scores
  float scale = 1;                 ///< factor of the weights

  static Routing of(const Attrs& attrs, int64_t experts) {
    Routing r;
    r.experts = static_cast<int>(experts);
    r.top_k = static_cast<int>(attrs.integer("top_k"));
    r.groups = static_cast<int>(attrs.integer("groups", 1));
    r.top_groups = static_cast<int>(attrs.integer("top_groups", r.groups));
    r.sigmoid = attrs.text("score", "softmax") == "sigmoid";
    r.normalize = attrs.flag("normalize");
    r.scale = static_cast<float>(attrs.number("scale", 1.0));
    return r;
  }

  TRAINCTL_HOST_DEVICE int group_size() const { return experts / groups; }
  /// Returns what the division by the sum of the scores, `total`, subtracts from the gradient of each weight. `first`
  /// is the gradient of the first weight, `sum` the sum of all gradients times their scores. With one expert per token
  /// the weight is constant. Its score's gradient is then exactly 0, because Adam would turn rounding errors into
  /// steps.
  TRAINCTL_HOST_DEVICE float normalization_gradient(float first, float sum, float total) const {
    if (!normalize) return 0;
    return top_k == 1 ? first : sum / total;
  }
};

/// Added to the divisor of `normalize`, so that it is never 0.
inline constexpr float kLeastScores = 1e-20f;

}  // namespace trainctl
