// Shared by the pools: one thread per element; consecutive threads have consecutive channels or columns. Sums and
// searches are sequential, so the same bits come out each time.
#pragma once

#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/images.h"

namespace trainctl {

/// One side of the windows; offsets of pixels are in elements.
struct PoolSide {
  int32_t size, windows;  ///< pixels of x and of y
  int32_t kernel, stride, before, after;
  int32_t dilation = 1;

  struct Span {
    int32_t first, end, counted;
  };
  __device__ int32_t reach() const { return dilation * (kernel - 1) + 1; }
  /// The pixels of a window in the image, every dilation-th, and how many a mean divides by.
  __device__ Span span(int32_t at, bool counts_padding) const {
    const int32_t first = at * stride - before, end = first + reach();
    const int32_t outside = first >= 0 ? 0 : dilation == 1 ? -first : (dilation - 1 - first) / dilation;
    const int32_t from = first + outside * dilation, to = min(end, size);
    return {from, to, counts_padding ? min(end, size + after) - first : to - from};
  }
  /// The windows between whose ends a pixel is; with dilation, it may be between the pixels of one.
  __device__ Span windows_of(int32_t pixel) const {
    const int32_t place = pixel + before;
    const int32_t first = place < reach() ? 0 : (place - reach()) / stride + 1;
    return {first, min(place / stride + 1, windows), 0};
  }
  /// The number of a window's pixel that is this far from its first one; -1: it is between two of them.
  __device__ int32_t number_at(int32_t distance) const {
    if (dilation == 1) return distance;
    return distance % dilation == 0 ? distance / dilation : -1;
  }
};

struct PoolShape {
  PoolSide rows, columns;
  int64_t channels = 1;  ///< next to each other in memory
  int64_t pieces = 1;    ///< images, or single channels of them
  bool counts_padding = false;

  static PoolShape of(const KernelCall& call, const TensorArg& x, const TensorArg& y) {
    const bool last = is_channels_last(call.attrs);
    const Images large = Images::of(x.shape, last), small = Images::of(y.shape, last);
    const Window w = Window::of(call.attrs);
    const auto side = [&](size_t d) {
      check(large.size[d] < (int64_t{1} << 30), "CUDA kernels take images of up to 2^30 pixels a side");
      return PoolSide{static_cast<int32_t>(large.size[d]), static_cast<int32_t>(small.size[d]),
                      static_cast<int32_t>(w.kernel[d]),   static_cast<int32_t>(w.stride[d]),
                      static_cast<int32_t>(w.before[d]),   static_cast<int32_t>(w.after[d]),
                      static_cast<int32_t>(w.dilation[d])};
    };
    return {side(0), side(1), last ? large.c : 1, last ? large.n : large.n * large.c,
            call.attrs.flag("count_include_pad")};
  }

  __device__ int64_t at(int64_t piece, int32_t row, int32_t column, int64_t channel) const {
    return ((piece * rows.size + row) * columns.size + column) * channels + channel;
  }
  __device__ int64_t window_at(int64_t piece, int32_t row, int32_t column, int64_t channel) const {
    return ((piece * rows.windows + row) * columns.windows + column) * channels + channel;
  }
};

struct PoolIndex {
  int64_t piece, channel;
  int32_t row, column;
};

/// The place of element i among `height` x `width` pixels a piece.
__device__ inline PoolIndex pool_index(const PoolShape& s, int64_t i, int32_t height, int32_t width) {
  const int64_t pixel = i / s.channels, line = pixel / width;
  return {line / height, i - pixel * s.channels, static_cast<int32_t>(line % height),
          static_cast<int32_t>(pixel - line * width)};
}

inline constexpr int kPoolThreads = 256;

template <class T, class Op>
__global__ void __launch_bounds__(kPoolThreads)
    pool_kernel(Op op, T* out, int64_t size, int32_t height, int32_t width) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPoolThreads + threadIdx.x;
  if (i < size) out[i] = from_f32<T>(op(pool_index(op.shape, i, height, width)));
}

/// out[i] = op(place of i), for y's windows or x's pixels.
template <class T, class Op>
CudaKernel launch_pool(Op op, const TensorArg& out, int32_t height, int32_t width, const char* name) {
  const int64_t size = out.size();
  if (size == 0) return [](CudaStream) {};
  return [op, to = out.as<T>(), size, height, width, name](CudaStream stream) {
    const auto blocks = static_cast<unsigned>(ceil_div(size, kPoolThreads));
    launch(pool_kernel<T, Op>, blocks, kPoolThreads, 0, stream, name, op, to, size, height, width);
  };
}

template <class T, class Op>
CudaKernel launch_over_windows(Op op, const TensorArg& y, const char* name) {
  return launch_pool<T>(op, y, op.shape.rows.windows, op.shape.columns.windows, name);
}
template <class T, class Op>
CudaKernel launch_over_pixels(Op op, const TensorArg& x, const char* name) {
  return launch_pool<T>(op, x, op.shape.rows.size, op.shape.columns.size, name);
}

}  // namespace trainctl
