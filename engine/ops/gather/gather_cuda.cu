// y = the elements of x at given indices along a dim; a thread per element of y. The gradient adds up dy per index in
// f32, in the order of the indices, so that the same bits come out each time.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/data_check_cuda.cuh"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/gather/gather_call.h"

namespace trainctl {
namespace {

constexpr int kGatherThreads = 256;

template <class T>
__global__ void __launch_bounds__(kGatherThreads)
    gather_kernel(GatherCall g, const T* x, const int32_t* index, T* y, int64_t size) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kGatherThreads + threadIdx.x;
  if (at >= size) return;
  const int64_t row = at / g.inner, k = at - row * g.inner, outer = row / g.count;
  const int32_t i = index[g.is_by_element ? at : row];
  if (i < 0 || i >= g.whole) data_is_wrong("gather: the data contains an index that is not in the dim");
  const int64_t place = i - g.first;
  y[at] = place < 0 || place >= g.n ? from_f32<T>(0.0f) : x[(outer * g.n + place) * g.inner + k];
}

template <class T>
__global__ void __launch_bounds__(kGatherThreads)
    gather_grad_kernel(GatherCall g, const T* dy, const int32_t* index, T* dx, int64_t size) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kGatherThreads + threadIdx.x;
  if (at >= size) return;
  const int64_t row = at / g.inner, k = at - row * g.inner, outer = row / g.n;
  const auto own = static_cast<int32_t>(row - outer * g.n + g.first);
  float sum = 0;
  for (int64_t j = 0; j < g.count; ++j) {
    const int64_t from = (outer * g.count + j) * g.inner + k;
    if (index[g.is_by_element ? from : outer * g.count + j] == own) sum += to_f32(dy[from]);
  }
  dx[at] = from_f32<T>(sum);
}

CudaKernel prepare_gather(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &y = call.out[0];
  const int64_t size = y.size();
  if (size == 0) return [](CudaStream) {};
  return with_any_float_type(y.dtype, [&](auto t) {
    using T = decltype(t);
    return CudaKernel([=, g = GatherCall::of(call, x, call.in[1]), from = static_cast<const T*>(x.as<T>()),
                       index = static_cast<const int32_t*>(call.in[1].as<int32_t>()),
                       to = y.as<T>()](CudaStream stream) {
      const auto blocks = static_cast<unsigned>(ceil_div(size, kGatherThreads));
      launch(gather_kernel<T>, blocks, kGatherThreads, 0, stream, "gather", g, from, index, to, size);
    });
  });
}

CudaKernel prepare_gather_grad(const CudaKernelCall& call) {
  const TensorArg &dy = call.in[0], &dx = call.out[0];
  const int64_t size = dx.size();
  if (size == 0) return [](CudaStream) {};
  return with_any_float_type(dx.dtype, [&](auto t) {
    using T = decltype(t);
    return CudaKernel([=, g = GatherCall::of(call, dx, call.in[1]), from = static_cast<const T*>(dy.as<T>()),
                       index = static_cast<const int32_t*>(call.in[1].as<int32_t>()),
                       to = dx.as<T>()](CudaStream stream) {
      const auto blocks = static_cast<unsigned>(ceil_div(size, kGatherThreads));
      launch(gather_grad_kernel<T>, blocks, kGatherThreads, 0, stream, "gather_grad", g, from, index, to, size);
    });
  });
}

}  // namespace

extern const CudaKernels gather_cuda = {{"gather", prepare_gather, kTakesF16},
                                        {"gather_grad", prepare_gather_grad, kTakesF16},
                                        {"scatter_add", prepare_gather_grad, kTakesF16}};

}  // namespace trainctl
