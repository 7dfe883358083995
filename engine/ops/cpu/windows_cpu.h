// Loops over the windows of images, shared by the pools. Images are split over threads, and of NCHW their channels.
#pragma once

#include <algorithm>

#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/images.h"
#include "engine/ops/kernel.h"

namespace trainctl::cpu {

/// The parameters of a pool's kernel: x is the large side, y has a pixel for each window.
struct Pool {
  Images x, y;
  Window window;
  bool channels_last = false, counts_padding = false;
  int threads = 1;

  static Pool of(const KernelCall& call, const TensorArg& x, const TensorArg& y) {
    const bool last = is_channels_last(call.attrs);
    Pool pool{Images::of(x.shape, last),
              Images::of(y.shape, last),
              Window::of(call.attrs),
              last,
              call.attrs.flag("count_include_pad"),
              call.threads};
    return pool;
  }

  /// The number of independent pieces: whole images if channels are last, else single channels of images.
  int64_t pieces() const { return channels_last ? x.n : x.n * x.c; }
  int64_t channels() const { return channels_last ? x.c : 1; }  ///< channels of a piece, next to each other in memory

  int parts() const {
    constexpr int64_t kWorthAThread = 1 << 16;
    const int64_t work = x.n * x.c * std::max(x.pixels(), y.pixels() * window.kernel[0] * window.kernel[1]);
    return static_cast<int>(std::max<int64_t>(1, std::min({int64_t{threads}, pieces(), work / kWorthAThread})));
  }

  /// Calls f(part, piece of x, piece of y) with the offsets of all pieces; each part is a thread.
  template <class F>
  void each_piece(F f) const {
    const int64_t of_x = channels() * x.pixels(), of_y = channels() * y.pixels(), all = pieces(), parts = this->parts();
    run_parts(static_cast<int>(parts), [&](int part) {
      for (int64_t i = all * part / parts; i < all * (part + 1) / parts; ++i) f(part, i * of_x, i * of_y);
    });
  }

  /// The pixels of a window that are inside the image, along one side: every window.dilation[d]th pixel from `first`
  /// on.
  struct Span {
    int64_t first, end;
    int64_t counted;  ///< pixels that a mean divides by
  };
  Span span(size_t d, int64_t at) const {
    const int64_t first = at * window.stride[d] - window.before[d], end = first + window.reach(d);
    const int64_t outside = first < 0 ? (-first + window.dilation[d] - 1) / window.dilation[d] : 0;
    const Span inside{first + outside * window.dilation[d], std::min(x.size[d], end), 0};
    const int64_t counted =
        counts_padding ? std::min(end, x.size[d] + window.after[d]) - first : inside.end - inside.first;
    return {inside.first, inside.end, counted};
  }

  /// Calls f(offset of the window's y, its rows, its columns) for the windows of a piece.
  template <class F>
  void each_window(F f) const {
    for (int64_t p = 0; p < y.size[0]; ++p) {
      const Span rows = span(0, p);
      for (int64_t q = 0; q < y.size[1]; ++q) f((p * y.size[1] + q) * channels(), rows, span(1, q));
    }
  }

  /// The offset of a pixel in a piece of x.
  int64_t at(int64_t row, int64_t column) const { return (row * x.size[1] + column) * channels(); }
};

}  // namespace trainctl::cpu
