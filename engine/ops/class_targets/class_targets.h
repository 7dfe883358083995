// The targets of a weighted softmax_cross_entropy, for CPUs and GPUs: row t of the output is, for class c,
// weights[c] ((1 - e) [c = label] + e / classes), with e = label_smoothing; 0 where the label is ignore_index.
#pragma once

#include <algorithm>

#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

/// They are arguments of the GPU's kernel.
inline constexpr int64_t kMostClassWeights = 512;

struct ClassTargets {
  float weights[kMostClassWeights] = {};
  float smoothing = 0;
  int32_t ignored = 0;
  bool ignores = false;

  static ClassTargets of(const Attrs& attrs) {
    ClassTargets targets;
    const std::vector<double>& weights = attrs.numbers("class_weights");
    std::transform(weights.begin(), weights.end(), targets.weights, [](double w) { return static_cast<float>(w); });
    targets.smoothing = static_cast<float>(attrs.number("label_smoothing", 0));
    targets.ignores = attrs.has("ignore_index");
    targets.ignored = static_cast<int32_t>(attrs.integer("ignore_index", 0));
    return targets;
  }
  TRAINCTL_HOST_DEVICE float at(int32_t label, int64_t c, int64_t classes) const {
    if (ignores && label == ignored) return 0.0f;
    return weights[c] * ((c == label ? 1.0f - smoothing : 0.0f) + smoothing / static_cast<float>(classes));
  }
};

}  // namespace trainctl
