// y = the largest x of each window. dx of a pixel is the sum of dy over the windows whose first largest pixel it is:
// the thread of the pixel searches each of them again.
#include "engine/ops/cuda/pool_cuda.cuh"

namespace trainctl {
namespace {

/// A NaN is larger than any number, and the first one stays.
__device__ bool is_larger(float x, float best) { return x > best || (isnan(x) && !isnan(best)); }

template <class T>
struct Largest {
  PoolShape shape;
  const T* x;

  __device__ float operator()(const PoolIndex& i) const {
    const auto rows = shape.rows.span(i.row, false), columns = shape.columns.span(i.column, false);
    float best = -INFINITY;
    for (int32_t r = rows.first; r < rows.end; ++r) {
      for (int32_t c = columns.first; c < columns.end; ++c) {
        const float value = to_f32(x[shape.at(i.piece, r, c, i.channel)]);
        best = is_larger(value, best) ? value : best;
      }
    }
    return best;
  }
};

template <class T>
struct ToLargest {
  PoolShape shape;
  const T *dy, *x;

  /// True if the pixel is the first largest one of the window.
  __device__ bool is_first_largest(const PoolIndex& i, int32_t p, int32_t q) const {
    const auto rows = shape.rows.span(p, false), columns = shape.columns.span(q, false);
    const float own = to_f32(x[shape.at(i.piece, i.row, i.column, i.channel)]);
    for (int32_t r = rows.first; r < rows.end; ++r) {
      for (int32_t c = columns.first; c < columns.end; ++c) {
        const bool before = r < i.row || (r == i.row && c < i.column);
        const float value = to_f32(x[shape.at(i.piece, r, c, i.channel)]);
        if (before ? !is_larger(own, value) : is_larger(value, own)) return false;
      }
    }
    return true;
  }

  __device__ float operator()(const PoolIndex& i) const {
    const auto rows = shape.rows.windows_of(i.row), columns = shape.columns.windows_of(i.column);
    float sum = 0;
    for (int32_t p = rows.first; p < rows.end; ++p) {
      for (int32_t q = columns.first; q < columns.end; ++q) {
        if (is_first_largest(i, p, q)) sum += to_f32(dy[shape.window_at(i.piece, p, q, i.channel)]);
      }
    }
    return sum;
  }
};

CudaKernel prepare_max_pool2d(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  return with_float_type(y.dtype, [&](auto t) {
    using T = decltype(t);
    return launch_over_windows<T>(Largest<T>{PoolShape::of(call, x, y), x.as<T>()}, y, "max_pool2d");
  });
}

CudaKernel prepare_max_pool2d_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  return with_float_type(dx.dtype, [&](auto t) {
    using T = decltype(t);
    return launch_over_pixels<T>(ToLargest<T>{PoolShape::of(call, x, dy), dy.as<T>(), x.as<T>()}, dx,
                                 "max_pool2d_grad");
  });
}

}  // namespace

extern const CudaKernels max_pool2d_cuda = {{"max_pool2d", prepare_max_pool2d},
                                            {"max_pool2d_grad", prepare_max_pool2d_grad}};

}  // namespace trainctl
