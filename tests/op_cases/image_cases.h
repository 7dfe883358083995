// Images with channels first or last, for the naive references of conv2d and the pools.
#pragma once

#include "engine/ops/images.h"
#include "tests/op_cases/naive.h"
#include "tests/op_cases/op_case.h"

namespace trainctl {

/// The reason why OpCases::allocating lists kernels of oneDNN.
inline constexpr const char* kOneDnnAllocates = "oneDNN 2.6 makes small allocations at each execution";

/// Adds the format to the attributes: channels last, or not.
inline Attrs in_format(Attrs attrs, bool channels_last) {
  if (channels_last) attrs.set("channels_last", true);
  return attrs;
}

/// A convolution with the same stride, padding and dilation in both directions.
struct SquareConvolution {
  Images x;
  Shape weight;
  int64_t stride = 1, padding = 0, dilation = 1, groups = 1;

  OpCase row(bool channels_last) const {
    Window window{.kernel = {weight[2], weight[3]}, .stride = {stride, stride}, .dilation = {dilation, dilation}};
    window.before = window.after = {padding, padding};
    const Images y{x.n, weight[0], {window.count(0, x.size[0]), window.count(1, x.size[1])}};
    const Attrs attrs{{"stride", Ints{stride, stride}},
                      {"padding", Ints(4, padding)},
                      {"dilation", Ints{dilation, dilation}},
                      {"groups", groups}};
    return {"conv2d", {{x.shape(channels_last)}, {weight}}, in_format(attrs, channels_last), {y.shape(channels_last)}};
  }
};

namespace naive {

struct Pixel {
  int64_t n, c, h, w;
};
inline Pixel pixel_of(const Index& i, bool channels_last) {
  return channels_last ? Pixel{i[0], i[3], i[1], i[2]} : Pixel{i[0], i[1], i[2], i[3]};
}

/// The number of elements from one image, channel, row and column to the next.
struct Strides {
  int64_t n, c, h, w;

  static Strides of(const Images& x, bool channels_last) {
    const int64_t all = x.c * x.pixels();
    return channels_last ? Strides{all, 1, x.size[1] * x.c, x.c} : Strides{all, x.pixels(), x.size[1], 1};
  }
};

inline bool is_inside(const Images& x, int64_t h, int64_t w) {
  return h >= 0 && w >= 0 && h < x.size[0] && w < x.size[1];
}

/// The value of a pixel; 0 outside of the image.
inline double pixel_or_zero(const Tensor64& x, bool channels_last, int64_t n, int64_t c, int64_t h, int64_t w) {
  if (!is_inside(Images::of(x.shape, channels_last), h, w)) return 0;
  return at(x, channels_last ? Index{n, h, w, c} : Index{n, c, h, w});
}

}  // namespace naive
}  // namespace trainctl
