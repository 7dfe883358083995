// The two arrangements of images, and the windows that conv2d and the pools slide over them. Plain functions, safe in
// .cu files.
//
// A batch of images is [n, c, h, w], with the attr channels_last [n, h, w, c].
#pragma once

#include <array>
#include <cstdint>

#include "engine/base/attrs.h"
#include "engine/graph/shape.h"

namespace trainctl {

inline bool is_channels_last(const Attrs& attrs) { return attrs.flag("channels_last"); }
/// The dim of the channels of images.
inline int channel_dim(bool channels_last) { return channels_last ? 3 : 1; }
inline int channel_dim(const Attrs& attrs) { return channel_dim(is_channels_last(attrs)); }

struct Images {
  int64_t n = 0, c = 0;
  std::array<int64_t, 2> size{};  ///< height, width

  static Images of(const Shape& s, bool channels_last) {
    return channels_last ? Images{s[0], s[3], {s[1], s[2]}} : Images{s[0], s[1], {s[2], s[3]}};
  }
  Shape shape(bool channels_last) const {
    return channels_last ? Shape{n, size[0], size[1], c} : Shape{n, c, size[0], size[1]};
  }
  int64_t pixels() const { return size[0] * size[1]; }
};

/// The positions of a window, by height and width. attrs: kernel, stride, dilation (absent: 1) [h, w]; padding
/// [top, bottom, left, right]; ceil_mode.
struct Window {
  std::array<int64_t, 2> kernel{1, 1}, stride{1, 1}, dilation{1, 1}, before{}, after{};
  bool ceil_mode = false;  ///< a last window may start in the image and end after the padding

  static Window of(const Attrs& attrs) {
    Window window{.ceil_mode = attrs.flag("ceil_mode")};
    const Ints kernel = attrs.ints("kernel"), stride = attrs.ints("stride"), dilation = attrs.ints("dilation"),
               padding = attrs.ints("padding");
    for (size_t d = 0; d < 2; ++d) {
      if (!kernel.empty()) window.kernel[d] = kernel[d];
      if (!stride.empty()) window.stride[d] = stride[d];
      if (!dilation.empty()) window.dilation[d] = dilation[d];
      if (padding.empty()) continue;
      window.before[d] = padding[2 * d];
      window.after[d] = padding[2 * d + 1];
    }
    return window;
  }

  /// Pixels from its first to its last.
  int64_t reach(size_t d) const { return dilation[d] * (kernel[d] - 1) + 1; }
  /// Windows along d; less than 1 if it does not fit.
  int64_t count(size_t d, int64_t size) const {
    const int64_t room = size + before[d] + after[d] - reach(d);
    if (room < 0) return 0;
    if (!ceil_mode) return room / stride[d] + 1;
    const int64_t more = (room + stride[d] - 1) / stride[d] + 1;
    return (more - 1) * stride[d] >= size + before[d] ? more - 1 : more;
  }
};

}  // namespace trainctl
