// Groups of channels that are convolved separately, as a field of layers.
#pragma once

#include <fmt/format.h>

#include "engine/ops/expect.h"
#include "engine/ops/layer_def.h"

namespace trainctl {

/// Throws a ShapeError of the field groups.
inline void expect_groups(int64_t groups, int64_t inputs, int64_t outputs) {
  if (inputs % groups == 0 && outputs % groups == 0) return;
  throw ShapeError(
      fmt::format("{} groups must divide the {} input channels and the {} output channels", groups, inputs, outputs),
      "groups");
}

inline Field groups_field() {
  return integer("groups",
                 "Number of channel groups that are convolved separately; equal to the number of channels for a "
                 "depthwise convolution.")
      .defaults(int64_t{1})
      .at_least(1)
      .at_most(kMaxSize);
}

}  // namespace trainctl
