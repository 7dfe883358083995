// The scores of a router and the choice of experts, for kernels of every device.
#pragma once

#include "engine/base/attrs.h"
#include "engine/ops/host_device.h"

namespace trainctl {

struct Routing {
  int experts = 0, top_k = 0, groups = 1, top_groups = 1;
  bool sigmoid = false, normalize = false;
  float scale = 1;

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
};

/// Added to the sum of a token's scores, by which they are divided.
inline constexpr float kLeastScores = 1e-20f;

}  // namespace trainctl
