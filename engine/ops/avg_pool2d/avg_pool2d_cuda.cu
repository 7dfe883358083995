// y = the mean of each window. dx of a pixel is the sum of dy over its windows, each divided by the window's pixels.
#include "engine/ops/cuda/pool_cuda.cuh"

namespace trainctl {
namespace {

template <class T>
struct Mean {
  PoolShape shape;
  const T* x;

  __device__ float operator()(const PoolIndex& i) const {
    const auto rows = shape.rows.span(i.row, shape.counts_padding),
               columns = shape.columns.span(i.column, shape.counts_padding);
    float sum = 0;
    for (int32_t r = rows.first; r < rows.end; ++r) {
      for (int32_t c = columns.first; c < columns.end; ++c) sum += to_f32(x[shape.at(i.piece, r, c, i.channel)]);
    }
    return sum / (static_cast<float>(rows.counted) * static_cast<float>(columns.counted));
  }
};

template <class T>
struct Spread {
  PoolShape shape;
  const T* dy;

  __device__ float operator()(const PoolIndex& i) const {
    const auto rows = shape.rows.windows_of(i.row), columns = shape.columns.windows_of(i.column);
    float sum = 0;
    for (int32_t p = rows.first; p < rows.end; ++p) {
      const auto height = static_cast<float>(shape.rows.span(p, shape.counts_padding).counted);
      for (int32_t q = columns.first; q < columns.end; ++q) {
        const auto width = static_cast<float>(shape.columns.span(q, shape.counts_padding).counted);
        sum += to_f32(dy[shape.window_at(i.piece, p, q, i.channel)]) / (height * width);
      }
    }
    return sum;
  }
};

CudaKernel prepare_avg_pool2d(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  return with_any_float_type(y.dtype, [&](auto t) {
    using T = decltype(t);
    return launch_over_windows<T>(Mean<T>{PoolShape::of(call, x, y), x.as<T>()}, y, "avg_pool2d");
  });
}

CudaKernel prepare_avg_pool2d_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &dx = call.out[0];
  return with_any_float_type(dx.dtype, [&](auto t) {
    using T = decltype(t);
    return launch_over_pixels<T>(Spread<T>{PoolShape::of(call, dx, dy), dy.as<T>()}, dx, "avg_pool2d_grad");
  });
}

}  // namespace

extern const CudaKernels avg_pool2d_cuda = {{"avg_pool2d", prepare_avg_pool2d, kTakesF16},
                                            {"avg_pool2d_grad", prepare_avg_pool2d_grad, kTakesF16}};

}  // namespace trainctl
