// A convolution and its gradients are products of matrices that are never in memory: their elements are read from the
// images. For each group of channels, with windows of r x s pixels over n images of p x q windows:
//
//   forward          [n p q, k] = x under the windows [n p q, r s c]  *  w [r s c, k]
//   input gradient   [n h w, c] = dy over the pixels  [n h w, r s k]  *  w [r s k, c]
//   weight gradient  [k, r s c] = dy [k, n p q]       *  x under the windows [n p q, r s c]
//
// A block computes a tile of the result. For the weight gradient, whose sums are long and whose tiles are few, it
// computes the part of some windows; a second kernel adds the parts in their order.
#include "engine/ops/conv2d/conv_own_cuda.h"
#include "engine/ops/cuda/cuda_scratch.h"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/cuda/strided_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kOwnConvThreads = 256, kOwnConvTile = 64, kOwnConvDepth = 16;
constexpr int kPerThread = 4;  ///< rows and columns per thread

/// Sizes of a group, and the elements from one index of the images to the next.
struct OwnConvSizes {
  int64_t images = 0;
  int c = 0, k = 0, groups = 1;
  int x_size[2] = {}, y_size[2] = {}, window = 1;  ///< pixels of a window
  int stride[2] = {}, dilation[2] = {}, before[2] = {};
  Divisor by_c, by_k, by_s;
  Divisor by_x_width, by_x_pixels, by_y_width, by_y_pixels;
  bool channels_last = false;

  explicit OwnConvSizes(const ConvShape& shape)
      : images(shape.x.n),
        c(int(shape.x.c / shape.groups)),
        k(int(shape.y.c / shape.groups)),
        groups(int(shape.groups)),
        window(int(shape.window.kernel[0] * shape.window.kernel[1])),
        by_c(c),
        by_k(k),
        by_s(shape.window.kernel[1]),
        by_x_width(shape.x.size[1]),
        by_x_pixels(shape.x.pixels()),
        by_y_width(shape.y.size[1]),
        by_y_pixels(shape.y.pixels()),
        channels_last(shape.channels_last) {
    for (size_t d = 0; d < 2; ++d) {
      x_size[d] = int(shape.x.size[d]), y_size[d] = int(shape.y.size[d]);
      stride[d] = int(shape.window.stride[d]), dilation[d] = int(shape.window.dilation[d]);
      before[d] = int(shape.window.before[d]);
    }
  }

  /// Index of an element of images with this many channels and pixels.
  __device__ int64_t at(int64_t image, int channel, int pixel, int channels, int pixels) const {
    return channels_last ? (image * pixels + pixel) * channels + channel
                         : (image * channels + channel) * pixels + pixel;
  }
  __device__ int64_t x_at(uint32_t image, int channel, int pixel) const {
    return at(image, channel, pixel, groups * c, x_size[0] * x_size[1]);
  }
  __device__ int64_t y_at(uint32_t image, int channel, int pixel) const {
    return at(image, channel, pixel, groups * k, y_size[0] * y_size[1]);
  }
  __device__ int64_t w_at(int output, int channel, int of_window) const {
    return (int64_t{output} * c + channel) * window + of_window;
  }
  /// The pixel of x under pixel `of_window` of window `at`; negative: in the padding.
  __device__ int under(uint32_t at, uint32_t of_window) const {
    const uint32_t p = by_y_width.quotient(at), r = by_s.quotient(of_window);
    const int h = int(p) * stride[0] + int(r) * dilation[0] - before[0];
    const int w = int(at - p * by_y_width.by) * stride[1] + int(of_window - r * by_s.by) * dilation[1] - before[1];
    return h < 0 || w < 0 || h >= x_size[0] || w >= x_size[1] ? -1 : h * x_size[1] + w;
  }
  /// The window whose pixel `of_window` is this pixel of x; negative: there is none.
  __device__ int over(uint32_t pixel, uint32_t of_window) const {
    const uint32_t h = by_x_width.quotient(pixel), r = by_s.quotient(of_window);
    const int p = int(h) + before[0] - int(r) * dilation[0];
    const int q = int(pixel - h * by_x_width.by) + before[1] - int(of_window - r * by_s.by) * dilation[1];
    if (p < 0 || q < 0 || p % stride[0] != 0 || q % stride[1] != 0) return -1;
    return p / stride[0] >= y_size[0] || q / stride[1] >= y_size[1] ? -1 : p / stride[0] * y_size[1] + q / stride[1];
  }
};

/// n = quotient * by + rest
struct OwnConvParts {
  uint32_t quotient, rest;
  __device__ OwnConvParts(uint32_t n, const Divisor& by) : quotient(by.quotient(n)), rest(n - quotient * by.by) {}
};

// The three products: element (row, depth) of the first matrix of a group, (depth, col) of the second, and where (row,
// col) of the result goes. Neighboring threads read along `depth`, or along rows and columns.

template <class T>
struct Forward {
  static constexpr bool kFirstAlongDepth = true, kSecondAlongDepth = true;
  OwnConvSizes size;
  const T *x, *w;
  T* y;

  int64_t rows() const { return size.images * size.y_size[0] * size.y_size[1]; }
  int64_t cols() const { return size.k; }
  int64_t depth() const { return int64_t{size.window} * size.c; }
  __device__ float first(int group, uint32_t row, uint32_t depth) const {
    const OwnConvParts image(row, size.by_y_pixels), weight(depth, size.by_c);
    const int pixel = size.under(image.rest, weight.quotient);
    return pixel < 0 ? 0 : to_f32(x[size.x_at(image.quotient, group * size.c + int(weight.rest), pixel)]);
  }
  __device__ float second(int group, uint32_t depth, uint32_t col) const {
    const OwnConvParts weight(depth, size.by_c);
    return to_f32(w[size.w_at(group * size.k + int(col), int(weight.rest), int(weight.quotient))]);
  }
  __device__ void store(int group, uint32_t row, uint32_t col, uint32_t, float value) const {
    const OwnConvParts image(row, size.by_y_pixels);
    y[size.y_at(image.quotient, group * size.k + int(col), int(image.rest))] = from_f32<T>(value);
  }
};

template <class T>
struct InputGrad {
  static constexpr bool kFirstAlongDepth = true, kSecondAlongDepth = false;
  OwnConvSizes size;
  const T *dy, *w;
  T* dx;

  int64_t rows() const { return size.images * size.x_size[0] * size.x_size[1]; }
  int64_t cols() const { return size.c; }
  int64_t depth() const { return int64_t{size.window} * size.k; }
  __device__ float first(int group, uint32_t row, uint32_t depth) const {
    const OwnConvParts image(row, size.by_x_pixels), weight(depth, size.by_k);
    const int window = size.over(image.rest, weight.quotient);
    return window < 0 ? 0 : to_f32(dy[size.y_at(image.quotient, group * size.k + int(weight.rest), window)]);
  }
  __device__ float second(int group, uint32_t depth, uint32_t col) const {
    const OwnConvParts weight(depth, size.by_k);
    return to_f32(w[size.w_at(group * size.k + int(weight.rest), int(col), int(weight.quotient))]);
  }
  __device__ void store(int group, uint32_t row, uint32_t col, uint32_t, float value) const {
    const OwnConvParts image(row, size.by_x_pixels);
    dx[size.x_at(image.quotient, group * size.c + int(col), int(image.rest))] = from_f32<T>(value);
  }
};

template <class T>
struct WeightGrad {
  static constexpr bool kFirstAlongDepth = false, kSecondAlongDepth = false;
  OwnConvSizes size;
  const T *x, *dy;
  float* parts;  ///< [parts, k, c, r, s]

  int64_t rows() const { return size.k; }
  int64_t cols() const { return int64_t{size.window} * size.c; }
  int64_t depth() const { return size.images * size.y_size[0] * size.y_size[1]; }
  __device__ float first(int group, uint32_t row, uint32_t depth) const {
    const OwnConvParts image(depth, size.by_y_pixels);
    return to_f32(dy[size.y_at(image.quotient, group * size.k + int(row), int(image.rest))]);
  }
  __device__ float second(int group, uint32_t depth, uint32_t col) const {
    const OwnConvParts image(depth, size.by_y_pixels), weight(col, size.by_c);
    const int pixel = size.under(image.rest, weight.quotient);
    return pixel < 0 ? 0 : to_f32(x[size.x_at(image.quotient, group * size.c + int(weight.rest), pixel)]);
  }
  __device__ void store(int group, uint32_t row, uint32_t col, uint32_t part, float value) const {
    const OwnConvParts weight(col, size.by_c);
    const int64_t of_part = int64_t{size.groups} * size.k * size.c * size.window;
    parts[part * of_part + size.w_at(group * size.k + int(row), int(weight.rest), int(weight.quotient))] = value;
  }
};

/// blockIdx.x: tiles of columns, of rows, groups; blockIdx.y: a part of the depth.
template <class Product>
__global__ void __launch_bounds__(kOwnConvThreads)
    convolution_kernel(Product f, uint32_t rows, uint32_t cols, uint32_t depth, uint32_t of_part, uint32_t row_tiles,
                       uint32_t col_tiles) {
  __shared__ __align__(16) float first[kOwnConvDepth][kOwnConvTile + 4], second[kOwnConvDepth][kOwnConvTile + 4];
  wait_for_kernel_before();
  let_next_kernel_start();
  const uint32_t col_tile = blockIdx.x % col_tiles, rest = blockIdx.x / col_tiles;
  const int group = int(rest / row_tiles);
  const uint32_t row0 = rest % row_tiles * kOwnConvTile, col0 = col_tile * kOwnConvTile;
  const uint32_t begin = blockIdx.y * of_part, end = min(depth, begin + of_part);
  const int my_row = int(threadIdx.x) / (kOwnConvTile / kPerThread) * kPerThread;
  const int my_col = int(threadIdx.x) % (kOwnConvTile / kPerThread) * kPerThread;
  float sums[kPerThread][kPerThread] = {};
  for (uint32_t d0 = begin; d0 < end; d0 += kOwnConvDepth) {
#pragma unroll
    for (int i = int(threadIdx.x); i < kOwnConvTile * kOwnConvDepth; i += kOwnConvThreads) {
      const int d_first = Product::kFirstAlongDepth ? i % kOwnConvDepth : i / kOwnConvTile;
      const int row = Product::kFirstAlongDepth ? i / kOwnConvDepth : i % kOwnConvTile;
      first[d_first][row] = row0 + row < rows && d0 + d_first < end ? f.first(group, row0 + row, d0 + d_first) : 0.0f;
      const int d_second = Product::kSecondAlongDepth ? i % kOwnConvDepth : i / kOwnConvTile;
      const int col = Product::kSecondAlongDepth ? i / kOwnConvDepth : i % kOwnConvTile;
      second[d_second][col] =
          col0 + col < cols && d0 + d_second < end ? f.second(group, d0 + d_second, col0 + col) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kOwnConvDepth; ++d) {
      const float4 a = *reinterpret_cast<const float4*>(&first[d][my_row]);
      const float4 b = *reinterpret_cast<const float4*>(&second[d][my_col]);
      const float of_row[] = {a.x, a.y, a.z, a.w}, of_col[] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
        for (int j = 0; j < kPerThread; ++j) sums[i][j] += of_row[i] * of_col[j];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      const uint32_t row = row0 + my_row + i, col = col0 + my_col + j;
      if (row < rows && col < cols) f.store(group, row, col, blockIdx.y, sums[i][j]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kOwnConvThreads)
    add_parts_kernel(const float* parts, T* dw, int64_t size, int count, bool accumulate) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kOwnConvThreads + threadIdx.x;
  if (i >= size) return;
  float sum = 0;
  for (int part = 0; part < count; ++part) sum += parts[part * size + i];
  dw[i] = from_f32<T>(accumulate ? to_f32(dw[i]) + sum : sum);
}

constexpr int64_t kMostIndex = int64_t{1} << 31;

template <class Product>
void run(CudaStream stream, const Product& f, int64_t parts) {
  const int64_t row_tiles = ceil_div(f.rows(), kOwnConvTile), col_tiles = ceil_div(f.cols(), kOwnConvTile);
  const int64_t of_part = ceil_div(ceil_div(f.depth(), parts), kOwnConvDepth) * kOwnConvDepth;
  const dim3 grid(static_cast<unsigned>(row_tiles * col_tiles * f.size.groups), static_cast<unsigned>(parts));
  launch(convolution_kernel<Product>, grid, kOwnConvThreads, 0, stream, "conv2d", f, uint32_t(f.rows()), uint32_t(f.cols()),
         uint32_t(f.depth()), uint32_t(of_part), uint32_t(row_tiles), uint32_t(col_tiles));
}

template <class Product>
void check_sizes(const Product& f) {
  const int64_t tiles = ceil_div(f.rows(), kOwnConvTile) * ceil_div(f.cols(), kOwnConvTile) * f.size.groups;
  check(f.rows() < kMostIndex && f.cols() < kMostIndex && f.depth() < kMostIndex && tiles < kMostIndex,
        "a convolution of 2^31 windows or more");
}

/// Enough blocks for a large GPU, each with at least 256 windows, whose parts fit into the scratch memory.
int64_t parts_of(const OwnConvSizes& size, int64_t weights) {
  const int64_t windows = size.images * size.y_size[0] * size.y_size[1];
  const int64_t tiles = ceil_div(size.k, kOwnConvTile) * ceil_div(int64_t{size.window} * size.c, kOwnConvTile) * size.groups;
  const int64_t most = std::min(ceil_div(windows, 256), kMostCudnnWorkspace / (4 * weights));
  return std::max<int64_t>(1, std::min(ceil_div(1024, tiles), most));
}

template <class T>
CudaKernel weight_grad(const OwnConvSizes& size, const ConvTensors& t, CudaScratch* scratch) {
  const int64_t weights = t.w.size(), parts = parts_of(size, weights);
  scratch->need(4 * parts * weights);
  check_sizes(WeightGrad<T>{size, nullptr, nullptr, nullptr});
  return [=](CudaStream stream) {
    auto* const memory = static_cast<float*>(scratch->memory());
    run(stream, WeightGrad<T>{size, t.x.as<T>(), t.y.as<T>(), memory}, parts);
    with_float_type(t.w.dtype, [&](auto type) {
      using W = decltype(type);
      launch(add_parts_kernel<W>, static_cast<unsigned>(ceil_div(weights, kOwnConvThreads)), kOwnConvThreads, 0, stream, "conv2d",
             memory, t.w.as<W>(), weights, int(parts), t.w.accumulate);
    });
  };
}

template <class Product>
CudaKernel one_launch(const Product& f) {
  check_sizes(f);
  return [f](CudaStream stream) { run(stream, f, 1); };
}

}  // namespace

CudaKernel own_convolution(ConvKind kind, const ConvShape& s, const ConvTensors& t, CudaScratch* scratch) {
  const OwnConvSizes size(s);
  check(t.x.dtype == t.y.dtype && (kind == ConvKind::weight || t.w.dtype == t.x.dtype),
        "images and weights of a convolution have one type");
  return with_float_type(t.x.dtype, [&](auto type) -> CudaKernel {
    using T = decltype(type);
    if (kind == ConvKind::weight) return weight_grad<T>(size, t, scratch);
    if (kind == ConvKind::data) return one_launch(InputGrad<T>{size, t.y.as<T>(), t.w.as<T>(), t.x.as<T>()});
    return one_launch(Forward<T>{size, t.x.as<T>(), t.w.as<T>(), t.y.as<T>()});
  });
}

}  // namespace trainctl
