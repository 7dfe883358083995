// The sizes of one convolution, from the operands of its three kernels. Those of a rank may be part of the channels:
// the groups follow from the shapes.
#pragma once

#include "engine/ops/images.h"
#include "engine/ops/kernel.h"

namespace trainctl {

struct ConvShape {
  Images x, y;
  int64_t groups = 1;
  Window window;
  bool channels_last = false;

  static ConvShape of(const Attrs& attrs, const Shape& x, const Shape& weight, const Shape& y) {
    ConvShape s;
    s.channels_last = is_channels_last(attrs);
    s.x = Images::of(x, s.channels_last);
    s.y = Images::of(y, s.channels_last);
    s.groups = weight[1] == 0 ? 1 : s.x.c / weight[1];
    s.window = Window::of(attrs);
    s.window.kernel = {weight[2], weight[3]};
    return s;
  }
};

}  // namespace trainctl
