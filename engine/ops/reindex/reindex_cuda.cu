// y[.., o, ..] = x[.., source(o), ..] along a dim, a thread per element of y. The gradient sums in f32, in fixed order.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/reindex/reindex_map.h"

namespace trainctl {
namespace {

constexpr int kReindexThreads = 256;

template <class T>
__global__ void __launch_bounds__(kReindexThreads) reindex_kernel(ReindexCall r, const T* x, T* y, int64_t size) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kReindexThreads + threadIdx.x;
  if (at >= size) return;
  const int64_t row = at / r.inner, k = at - row * r.inner, outer = row / r.y_size, o = row - outer * r.y_size;
  const int64_t i = r.map.source(r.y_first + o) - r.x_first;
  y[at] = i < 0 || i >= r.x_size ? from_f32<T>(0.0f) : x[(outer * r.x_size + i) * r.inner + k];
}

template <class T>
__global__ void __launch_bounds__(kReindexThreads)
    reindex_grad_kernel(ReindexCall r, const T* dy, T* dx, int64_t size) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kReindexThreads + threadIdx.x;
  if (at >= size) return;
  const int64_t row = at / r.inner, k = at - row * r.inner, outer = row / r.x_size, i = row - outer * r.x_size;
  float sum = 0;
  r.map.each_target(r.x_first + i, [&](int64_t o) {
    if (o >= r.y_first && o < r.y_first + r.y_size) sum += to_f32(dy[(outer * r.y_size + o - r.y_first) * r.inner + k]);
  });
  dx[at] = from_f32<T>(sum);
}

template <class Kernel>
CudaKernel launch_over(Kernel kernel, const ReindexCall& r, const TensorArg& in, const TensorArg& out,
                       const char* name) {
  const int64_t size = out.size();
  if (size == 0) return [](CudaStream) {};
  check(in.dtype == out.dtype, "reindex moves elements as they are");
  return with_any_float_type(out.dtype, [&](auto t) {
    using T = decltype(t);
    return CudaKernel([=, from = static_cast<const T*>(in.as<T>()), to = out.as<T>()](CudaStream stream) {
      const auto blocks = static_cast<unsigned>(ceil_div(size, kReindexThreads));
      launch(kernel(t), blocks, kReindexThreads, 0, stream, name, r, from, to, size);
    });
  });
}

CudaKernel prepare_reindex(const CudaKernelCall& call) {
  const ReindexCall r = ReindexCall::of(call, call.in[0], call.out[0]);
  return launch_over([](auto t) { return reindex_kernel<decltype(t)>; }, r, call.in[0], call.out[0], "reindex");
}
CudaKernel prepare_reindex_grad(const CudaKernelCall& call) {
  const ReindexCall r = ReindexCall::of(call, call.out[0], call.in[0]);
  return launch_over([](auto t) { return reindex_grad_kernel<decltype(t)>; }, r, call.in[0], call.out[0],
                     "reindex_grad");
}

}  // namespace

extern const CudaKernels reindex_cuda = {{"reindex", prepare_reindex, kTakesF16},
                                         {"reindex_grad", prepare_reindex_grad, kTakesF16}};

}  // namespace trainctl
