// Resizes images by interpolation; a thread per element of the output. The gradient sums in f32, in a fixed order.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/vector_cuda.cuh"
#include "engine/ops/interpolate/interpolate_map.h"

namespace trainctl {
namespace {

constexpr int kInterpolateThreads = 256;

template <class T>
__global__ void __launch_bounds__(kInterpolateThreads)
    interpolate_kernel(InterpolateCall c, const T* x, T* y, int64_t size) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kInterpolateThreads + threadIdx.x;
  if (at >= size) return;
  const int64_t row = at / c.inner, k = at - row * c.inner, outer = row / c.y_size, o = row - outer * c.y_size;
  const InterpolateMap::Source s = c.map.source(c.y_first + o);
  const T* const from = x + outer * c.x_size * c.inner + k;
  float sum = 0;
#pragma unroll
  for (int tap = 0; tap < InterpolateMap::kTaps; ++tap) {
    const int64_t i = s.at[tap] - c.x_first;
    if (s.weights[tap] != 0.0f && i >= 0 && i < c.x_size) sum += s.weights[tap] * to_f32(from[i * c.inner]);
  }
  y[at] = from_f32<T>(sum);
}

template <class T>
__global__ void __launch_bounds__(kInterpolateThreads)
    interpolate_grad_kernel(InterpolateCall c, const T* dy, T* dx, int64_t size) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kInterpolateThreads + threadIdx.x;
  if (at >= size) return;
  const int64_t row = at / c.inner, k = at - row * c.inner, outer = row / c.x_size,
                i = row - outer * c.x_size + c.x_first;
  const InterpolateMap::Targets all = c.map.targets(i, c.m);
  const int64_t begin = all.begin > c.y_first ? all.begin : c.y_first,
                end = all.end < c.y_first + c.y_size ? all.end : c.y_first + c.y_size;
  float sum = 0;
  for (int64_t o = begin; o < end; ++o) {
    const float weight = c.map.weight_of(i, o);
    if (weight != 0.0f) sum += weight * to_f32(dy[(outer * c.y_size + o - c.y_first) * c.inner + k]);
  }
  dx[at] = from_f32<T>(sum);
}

template <class Kernel>
CudaKernel launch_interpolation(Kernel kernel, const InterpolateCall& c, const TensorArg& in, const TensorArg& out,
                                const char* name) {
  const int64_t size = out.size();
  if (size == 0) return [](CudaStream) {};
  check(in.dtype == out.dtype, "interpolate keeps the type");
  return with_any_float_type(out.dtype, [&](auto t) {
    using T = decltype(t);
    return CudaKernel([=, from = static_cast<const T*>(in.as<T>()), to = out.as<T>()](CudaStream stream) {
      const auto blocks = static_cast<unsigned>(ceil_div(size, kInterpolateThreads));
      launch(kernel(t), blocks, kInterpolateThreads, 0, stream, name, c, from, to, size);
    });
  });
}

CudaKernel prepare_interpolate(const CudaKernelCall& call) {
  const InterpolateCall c = InterpolateCall::of(call, call.in[0], call.out[0]);
  return launch_interpolation([](auto t) { return interpolate_kernel<decltype(t)>; }, c, call.in[0], call.out[0],
                              "interpolate");
}
CudaKernel prepare_interpolate_grad(const CudaKernelCall& call) {
  const InterpolateCall c = InterpolateCall::of(call, call.out[0], call.in[0]);
  return launch_interpolation([](auto t) { return interpolate_grad_kernel<decltype(t)>; }, c, call.in[0], call.out[0],
                              "interpolate_grad");
}

}  // namespace

extern const CudaKernels interpolate_cuda = {{"interpolate", prepare_interpolate, kTakesF16},
                                             {"interpolate_grad", prepare_interpolate_grad, kTakesF16}};

}  // namespace trainctl
