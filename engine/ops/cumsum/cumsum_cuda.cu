// Running sums along a dim. A warp per row if the dim is the innermost: 32 elements at a time, with sums of neighbours
// at distances 1, 2, 4, 8, 16. Else a thread per column, so that a warp reads consecutive elements.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl {
namespace {

constexpr int kCumsumThreads = 256, kCumsumWarp = 32;

/// y[row, i] = sum of x[row, 0 .. i], or of x[row, i .. n - 1] if `reverse`: one warp per row, 32 elements at a time.
template <class T>
__global__ void __launch_bounds__(kCumsumThreads)
    cumsum_rows_kernel(const T* x, T* y, int64_t rows, int64_t n, bool reverse) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kCumsumThreads / kCumsumWarp) + threadIdx.x / kCumsumWarp;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kCumsumWarp;
  float before = 0;
  for (int64_t first = 0; first < n; first += kCumsumWarp) {
    const int64_t step = first + lane, at = row * n + (reverse ? n - 1 - step : step);
    float sum = step < n ? to_f32(x[at]) : 0.0f;
    for (int away = 1; away < kCumsumWarp; away *= 2) {
      const float other = __shfl_up_sync(~0u, sum, away);
      if (lane >= away) sum += other;
    }
    sum += before;
    if (step < n) y[at] = from_f32<T>(sum);
    before = __shfl_sync(~0u, sum, kCumsumWarp - 1);
  }
}

template <class T>
__global__ void __launch_bounds__(kCumsumThreads)
    cumsum_columns_kernel(const T* x, T* y, int64_t columns, int64_t inner, int64_t n, bool reverse) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kCumsumThreads + threadIdx.x;
  if (column >= columns) return;
  const int64_t base = column / inner * n * inner + column % inner;
  float sum = 0;
  for (int64_t step = 0; step < n; ++step) {
    const int64_t at = base + (reverse ? n - 1 - step : step) * inner;
    sum += to_f32(x[at]);
    y[at] = from_f32<T>(sum);
  }
}

CudaKernel prepare_cumsum(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  if (y.size() == 0) return [](CudaStream) {};
  check(x.dtype == y.dtype, "cumsum keeps the type");
  const auto dim = static_cast<size_t>(call.attrs.integer("dim"));
  const int64_t n = x.shape[dim];
  int64_t inner = 1;
  for (size_t d = dim + 1; d < x.shape.size(); ++d) inner *= x.shape[d];
  const int64_t columns = y.size() / n;
  return with_any_float_type(y.dtype, [&](auto t) {
    using T = decltype(t);
    return CudaKernel([=, from = static_cast<const T*>(x.as<T>()), to = y.as<T>(),
                       reverse = call.attrs.flag("reverse")](CudaStream stream) {
      if (inner == 1) {
        const auto blocks = static_cast<unsigned>(ceil_div(columns, kCumsumThreads / kCumsumWarp));
        launch(cumsum_rows_kernel<T>, blocks, kCumsumThreads, 0, stream, "cumsum", from, to, columns, n, reverse);
        return;
      }
      const auto blocks = static_cast<unsigned>(ceil_div(columns, kCumsumThreads));
      launch(cumsum_columns_kernel<T>, blocks, kCumsumThreads, 0, stream, "cumsum", from, to, columns, inner, n,
             reverse);
    });
  });
}

}  // namespace

extern const CudaKernels cumsum_cuda = {{"cumsum", prepare_cumsum, kTakesF16}};

}  // namespace trainctl
