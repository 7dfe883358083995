// Converts weights and images to the layouts that cuDNN requires, in scratch memory: weights [k, r, s, c] for images
// that are channels last, and channels padded with zeros.
#include "engine/ops/conv2d/conv_layout_cuda.h"
#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl {
namespace {

constexpr int kLayoutThreads = 256;

unsigned layout_blocks(int64_t elements) { return static_cast<unsigned>(ceil_div(elements, kLayoutThreads)); }

template <class From, class To>
__global__ void __launch_bounds__(kLayoutThreads)
    copy_weight_kernel(const From* from, WeightLayout from_layout, To* to, WeightLayout to_layout, bool add) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kLayoutThreads + threadIdx.x;
  if (i >= to_layout.k * to_layout.c * to_layout.window) return;
  const int64_t inner = to_layout.channels_last ? to_layout.c : to_layout.window;
  const int64_t middle = to_layout.channels_last ? to_layout.window : to_layout.c;
  const int64_t line = i / inner, last = i - line * inner, k = line / middle, between = line - k * middle;
  const int64_t c = to_layout.channels_last ? last : between, pixel = to_layout.channels_last ? between : last;
  float value = 0;
  if (k < from_layout.k && c < from_layout.c) {
    value = to_f32(from[from_layout.channels_last ? (k * from_layout.window + pixel) * from_layout.c + c
                                                  : (k * from_layout.c + c) * from_layout.window + pixel]);
  }
  to[i] = from_f32<To>(add ? to_f32(to[i]) + value : value);
}

template <class T>
__global__ void __launch_bounds__(kLayoutThreads)
    copy_rows_kernel(const T* from, int64_t from_width, T* to, int64_t to_width, int64_t size) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kLayoutThreads + threadIdx.x;
  if (i >= size) return;
  const int64_t row = i / to_width, at = i - row * to_width;
  to[i] = at < from_width ? from[row * from_width + at] : from_f32<T>(0.0f);
}

}  // namespace

void copy_weight(CudaStream stream, const void* from, DType from_type, const WeightLayout& from_layout, void* to,
                 DType to_type, const WeightLayout& to_layout, bool add) {
  with_any_float_type(from_type, [&](auto from_element) {
    with_any_float_type(to_type, [&](auto to_element) {
      using From = decltype(from_element);
      using To = decltype(to_element);
      launch(copy_weight_kernel<From, To>, layout_blocks(to_layout.size()), kLayoutThreads, 0, stream, "conv2d weights",
             static_cast<const From*>(from), from_layout, static_cast<To*>(to), to_layout, add);
    });
  });
}

void copy_rows(CudaStream stream, DType type, const void* from, int64_t from_width, void* to, int64_t to_width,
               int64_t rows) {
  with_any_float_type(type, [&](auto element) {
    using T = decltype(element);
    launch(copy_rows_kernel<T>, layout_blocks(rows * to_width), kLayoutThreads, 0, stream, "conv2d images",
           static_cast<const T*>(from), from_width, static_cast<T*>(to), to_width, rows * to_width);
  });
}

}  // namespace trainctl
