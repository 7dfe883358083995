// Images in either arrangement, for the naive references of conv2d and the pools.
#pragma once

#include "engine/ops/images.h"
#include "tests/op_cases/naive.h"

namespace trainctl {

/// Kernels of oneDNN: why OpCases::allocating has them.
inline constexpr const char* kOneDnnAllocates = "oneDNN 2.6 makes small allocations at each execution";

/// The attrs, for images that are channels last or not.
inline Attrs in_format(Attrs attrs, bool channels_last) {
  if (channels_last) attrs.set("channels_last", true);
  return attrs;
}

namespace naive {

struct Pixel {
  int64_t n, c, h, w;
};
inline Pixel pixel_of(const Index& i, bool channels_last) {
  return channels_last ? Pixel{i[0], i[3], i[1], i[2]} : Pixel{i[0], i[1], i[2], i[3]};
}

inline bool is_inside(const Images& x, int64_t h, int64_t w) {
  return h >= 0 && w >= 0 && h < x.size[0] && w < x.size[1];
}

/// 0 outside of the image.
inline double pixel_or_zero(const Tensor64& x, bool channels_last, int64_t n, int64_t c, int64_t h, int64_t w) {
  if (!is_inside(Images::of(x.shape, channels_last), h, w)) return 0;
  return at(x, channels_last ? Index{n, h, w, c} : Index{n, c, h, w});
}

}  // namespace naive
}  // namespace trainctl
