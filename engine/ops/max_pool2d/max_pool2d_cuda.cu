// y = the largest x of each window. For the gradient, one kernel notes in scratch memory which pixel of each window is
// the first largest one, and a second one sums dy, for each pixel, over the windows that have noted it. A thread
// computes 16 bytes of neighboring channels if the images are channels last, else one element.
#include "engine/ops/cuda/pool_cuda.cuh"
#include "engine/ops/cuda/strided_cuda.cuh"
#include "engine/ops/cuda/vector_cuda.cuh"

namespace trainctl {
namespace {

/// A NaN is larger than any number, and the first one stays.
__device__ bool is_larger(float x, float best) { return x > best || (isnan(x) && !isnan(best)); }

/// The place of a pack among `height` x `width` pixels a piece.
struct Places {
  int32_t height = 0, width = 0;
  int64_t count = 0;
  Divisor by_channels, by_width, by_height;

  Places(const PoolShape& packs, int32_t height, int32_t width)
      : height(height),
        width(width),
        count(packs.pieces * height * width * packs.channels),
        by_channels(packs.channels),
        by_width(width),
        by_height(height) {}

  __device__ PoolIndex at(const PoolShape& packs, int64_t i) const {
    if (count >= int64_t{1} << 31) return pool_index(packs, i, height, width);
    const uint32_t pixel = by_channels.quotient(uint32_t(i)), line = by_width.quotient(pixel);
    const uint32_t piece = by_height.quotient(line);
    return {int64_t{piece}, int64_t{uint32_t(i) - pixel * by_channels.by}, int32_t(line - piece * by_height.by),
            int32_t(pixel - line * by_width.by)};
  }
};

/// Marks a pixel of a window, row by row; all ones: none. `Which` has a value for each.
template <class Which>
inline constexpr Which kNone = static_cast<Which>(-1);

/// V places of pixels, in one access.
template <class Which, int V>
struct alignas(sizeof(Which) * V) Marks {
  Which of[V];
};

/// y: the largest pixel of each window, one thread per window and pack of V channels.
template <class T, int V>
__global__ void __launch_bounds__(kPoolThreads) largest_kernel(PoolShape s, Places places, Ref<T> x, Ref<T> y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPoolThreads + threadIdx.x;
  if (i >= places.count) return;
  const PoolIndex at = places.at(s, i);
  const auto rows = s.rows.span(at.row, false), columns = s.columns.span(at.column, false);
  float best[V];
#pragma unroll
  for (float& b : best) b = -INFINITY;
  for (int32_t r = rows.first; r < rows.end; r += s.rows.dilation) {
    for (int32_t c = columns.first; c < columns.end; c += s.columns.dilation) {
      float v[V];
      load(x, s.at(at.piece, r, c, at.channel) * V, v);
#pragma unroll
      for (int e = 0; e < V; ++e) best[e] = is_larger(v[e], best[e]) ? v[e] : best[e];
    }
  }
  store(y, i * V, best);
}

/// marks: the number of the first largest pixel in each window.
template <class T, int V, class Which>
__global__ void __launch_bounds__(kPoolThreads)
    mark_kernel(PoolShape s, Places places, Ref<T> x, Marks<Which, V>* marks) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPoolThreads + threadIdx.x;
  if (i >= places.count) return;
  const PoolIndex at = places.at(s, i);
  const auto rows = s.rows.span(at.row, false), columns = s.columns.span(at.column, false);
  const int32_t row0 = at.row * s.rows.stride - s.rows.before,
                column0 = at.column * s.columns.stride - s.columns.before;
  float best[V];
  Marks<Which, V> first;
#pragma unroll
  for (int e = 0; e < V; ++e) best[e] = 0, first.of[e] = kNone<Which>;
  for (int32_t r = rows.first; r < rows.end; r += s.rows.dilation) {
    for (int32_t c = columns.first; c < columns.end; c += s.columns.dilation) {
      const auto here =
          static_cast<Which>(s.rows.number_at(r - row0) * s.columns.kernel + s.columns.number_at(c - column0));
      float v[V];
      load(x, s.at(at.piece, r, c, at.channel) * V, v);
#pragma unroll
      for (int e = 0; e < V; ++e) {
        const bool larger = first.of[e] == kNone<Which> || is_larger(v[e], best[e]);
        best[e] = larger ? v[e] : best[e];
        first.of[e] = larger ? here : first.of[e];
      }
    }
  }
  marks[i] = first;
}

/// dx of each pixel: the sum of dy over the windows whose mark is this pixel.
template <class T, int V, class Which>
__global__ void __launch_bounds__(kPoolThreads)
    gather_kernel(PoolShape s, Places places, Ref<T> dy, const Marks<Which, V>* marks, Ref<T> dx) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPoolThreads + threadIdx.x;
  if (i >= places.count) return;
  const PoolIndex at = places.at(s, i);
  const auto rows = s.rows.windows_of(at.row), columns = s.columns.windows_of(at.column);
  float sums[V] = {};
  for (int32_t p = rows.first; p < rows.end; ++p) {
    const int32_t row = s.rows.number_at(at.row + s.rows.before - p * s.rows.stride);
    if (row < 0) continue;
    for (int32_t q = columns.first; q < columns.end; ++q) {
      const int32_t column = s.columns.number_at(at.column + s.columns.before - q * s.columns.stride);
      if (column < 0) continue;
      const int64_t window = s.window_at(at.piece, p, q, at.channel);
      const Marks<Which, V> first = marks[window];
      const auto here = static_cast<Which>(row * s.columns.kernel + column);
      float v[V];
      load(dy, window * V, v);
#pragma unroll
      for (int e = 0; e < V; ++e) sums[e] += first.of[e] == here ? v[e] : 0.0f;
    }
  }
  store(dx, i * V, sums);
}

unsigned blocks(const Places& places) { return static_cast<unsigned>(ceil_div(places.count, kPoolThreads)); }

bool is_aligned(const TensorArg& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; }

/// Calls run(channels of a thread, as a constant, and the shape in packs of that size).
template <class T, class Run>
CudaKernel with_packs(PoolShape s, bool aligned, Run run) {
  constexpr int kV = kPack<T>;
  if (!aligned || s.channels % kV != 0) return run(std::integral_constant<int, 1>{}, s);
  s.channels /= kV;
  return run(std::integral_constant<int, kV>{}, s);
}

CudaKernel prepare_max_pool2d(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  if (y.size() == 0) return [](CudaStream) {};
  return with_any_float_type(y.dtype, [&](auto t) {
    using T = decltype(t);
    return with_packs<T>(
        PoolShape::of(call, x, y), is_aligned(x) && is_aligned(y), [&](auto v, const PoolShape& s) -> CudaKernel {
          constexpr int kV = v;
          const Places places(s, s.rows.windows, s.columns.windows);
          return [s, places, from = ref<T>(x), to = ref<T>(y)](CudaStream stream) {
            launch(largest_kernel<T, kV>, blocks(places), kPoolThreads, 0, stream, "max_pool2d", s, places, from, to);
          };
        });
  });
}

template <class T, int V, class Which>
CudaKernel gradient(const CudaKernelCall& call, const PoolShape& s) {
  const Places windows(s, s.rows.windows, s.columns.windows), pixels(s, s.rows.size, s.columns.size);
  call.scratch->need(windows.count * static_cast<int64_t>(sizeof(Marks<Which, V>)));
  return [s, windows, pixels, dy = ref<T>(call.in[0]), x = ref<T>(call.in[1]), dx = ref<T>(call.out[0]),
          scratch = call.scratch](CudaStream stream) {
    auto* const marks = static_cast<Marks<Which, V>*>(scratch->memory());
    if (windows.count > 0)
      launch(mark_kernel<T, V, Which>, blocks(windows), kPoolThreads, 0, stream, "max_pool2d_grad", s, windows, x,
             marks);
    launch(gather_kernel<T, V, Which>, blocks(pixels), kPoolThreads, 0, stream, "max_pool2d_grad", s, pixels, dy, marks,
           dx);
  };
}

CudaKernel prepare_max_pool2d_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  if (dx.size() == 0) return [](CudaStream) {};
  return with_any_float_type(dx.dtype, [&](auto t) {
    using T = decltype(t);
    const PoolShape shape = PoolShape::of(call, x, dy);
    const bool aligned = is_aligned(dy) && is_aligned(x) && is_aligned(dx);
    return with_packs<T>(shape, aligned, [&](auto v, const PoolShape& s) -> CudaKernel {
      constexpr int kV = v;
      const bool byte = int64_t{s.rows.kernel} * s.columns.kernel <= kNone<uint8_t>;
      if (byte) return gradient<T, kV, uint8_t>(call, s);
      return gradient<T, 1, uint32_t>(call, shape);
    });
  });
}

}  // namespace

extern const CudaKernels max_pool2d_cuda = {{"max_pool2d", prepare_max_pool2d, kTakesF16},
                                            {"max_pool2d_grad", prepare_max_pool2d_grad, kTakesF16}};

}  // namespace trainctl
