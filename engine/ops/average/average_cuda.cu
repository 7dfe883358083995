// average_weights: in weights; out average. exchange_average: out weights, average, (bf16 copy of the weights).
// outer_update: in sum of differences; out outer weights, momentum, weights, (bf16 copy of the weights). With
// StepScalars::average_rate 1 the weights become the mean of the replicas', and the momentum stays.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/vector_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kAverageThreads = 256;

__global__ void average_weights_kernel_cuda(const float* w, float* average, int64_t n, const StepScalars* scalars) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kAverageThreads + threadIdx.x;
  if (i >= n) return;
  const float rate = scalars->average_rate;
  average[i] = rate == 1.0f ? w[i] : average[i] + rate * (w[i] - average[i]);
}

/// copy: null if there is none.
__global__ void exchange_average_kernel_cuda(float* w, float* average, Ref<bf16> copy, int64_t n) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kAverageThreads + threadIdx.x;
  if (i >= n) return;
  const float weight = average[i];
  average[i] = w[i];
  w[i] = weight;
  if (copy.p != nullptr) set(copy, i, weight);
}

/// copy: null if there is none.
__global__ void outer_update_kernel_cuda(const float* sum, float* outer, float* state, float* w, Ref<bf16> copy,
                                         int64_t n, float rate, float momentum, float scale, bool nesterov,
                                         const StepScalars* scalars) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kAverageThreads + threadIdx.x;
  if (i >= n) return;
  const bool is_mean = scalars->average_rate == 1.0f;
  const float g = scale * sum[i], m = is_mean ? state[i] : momentum * state[i] + g;
  const float weight = outer[i] - (is_mean ? g : rate * (nesterov ? g + momentum * m : m));
  state[i] = m;
  outer[i] = weight;
  w[i] = weight;
  if (copy.p != nullptr) set(copy, i, weight);
}

unsigned average_blocks(int64_t n) { return static_cast<unsigned>(ceil_div(n, kAverageThreads)); }

CudaKernel prepare_average_weights(const CudaKernelCall& call) {
  return [w = call.in[0].as<const float>(), average = call.out[0].as<float>(), n = call.out[0].size(),
          scalars = call.scalars](CudaStream stream) {
    if (n == 0) return;
    launch(average_weights_kernel_cuda, average_blocks(n), kAverageThreads, 0, stream, "average_weights", w, average, n,
           scalars);
  };
}

CudaKernel prepare_exchange_average(const CudaKernelCall& call) {
  const bool has_copy = call.out.back().dtype == DType::bf16;
  return [w = call.out[0].as<float>(), average = call.out[1].as<float>(), n = call.out[0].size(),
          copy = has_copy ? ref<bf16>(call.out.back()) : Ref<bf16>{}](CudaStream stream) {
    if (n == 0) return;
    launch(exchange_average_kernel_cuda, average_blocks(n), kAverageThreads, 0, stream, "exchange_average", w, average,
           copy, n);
  };
}

CudaKernel prepare_outer_update(const CudaKernelCall& call) {
  const bool has_copy = call.out.back().dtype == DType::bf16;
  return
      [sum = call.in[0].as<const float>(), outer = call.out[0].as<float>(), state = call.out[1].as<float>(),
       w = call.out[2].as<float>(), n = call.in[0].size(), copy = has_copy ? ref<bf16>(call.out.back()) : Ref<bf16>{},
       rate = static_cast<float>(call.attrs.number("learning_rate")),
       momentum = static_cast<float>(call.attrs.number("momentum")),
       scale = static_cast<float>(call.attrs.number("scale")),
       nesterov = call.attrs.flag("nesterov"), scalars = call.scalars](CudaStream stream) {
        if (n == 0) return;
        launch(outer_update_kernel_cuda, average_blocks(n), kAverageThreads, 0, stream, "outer_update", sum, outer,
               state, w, copy, n, rate, momentum, scale, nesterov, scalars);
      };
}

}  // namespace

extern const CudaKernels average_cuda = {{"average_weights", prepare_average_weights},
                                         {"exchange_average", prepare_exchange_average},
                                         {"outer_update", prepare_outer_update}};

}  // namespace trainctl
