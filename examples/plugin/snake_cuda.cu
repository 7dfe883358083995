// The kernels of snake for NVIDIA GPUs, with the formulas of snake.c. They enqueue their work and do not wait for it.
//
//     nvcc -O2 -shared -Xcompiler -fPIC -DSNAKE_CUDA -o snake.so snake.c snake_cuda.cu
#include <cuda_runtime.h>

#include "snake_cuda.h"

namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t elements) { return static_cast<unsigned>((elements + kThreads - 1) / kThreads); }

__global__ void forward(const float* x, const float* a, float* y, int64_t size, int64_t features, float power) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const float of_feature = a[i % features], s = sinf(of_feature * x[i]);
  y[i] = x[i] + power * s * s / of_feature;
}

__global__ void input_gradient(const float* dy, const float* x, const float* a, float* dx, int64_t size,
                               int64_t features, float power, bool adds) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= size) return;
  dx[i] = (adds ? dx[i] : 0.0f) + dy[i] * (1.0f + power * sinf(2.0f * a[i % features] * x[i]));
}

// One thread per feature adds up the rows in order, so that two runs give the same bits.
__global__ void parameter_gradient(const float* dy, const float* x, const float* a, float* da, int64_t size,
                                   int64_t features, float power, bool adds) {
  const int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (n >= features) return;
  const float of_feature = a[n];
  float sum = 0;
  for (int64_t i = n; i < size; i += features) {
    const float s = sinf(of_feature * x[i]), twice = sinf(2.0f * of_feature * x[i]);
    sum += dy[i] * power * (x[i] * twice / of_feature - s * s / (of_feature * of_feature));
  }
  da[n] = (adds ? da[n] : 0.0f) + sum;
}

int launched(const trainctl_call* call) {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? 0 : trainctl_fail(call, cudaGetErrorString(error));
}

struct Operands {
  const float *x, *a;
  int64_t size, features;
  float power;

  explicit Operands(const trainctl_call* call)
      : x(static_cast<const float*>(call->inputs[0].data)),
        a(static_cast<const float*>(call->inputs[1].data)),
        size(trainctl_size(&call->inputs[0].shape)),
        features(call->inputs[1].shape.dims[0]),
        power(static_cast<float>(call->attributes[0].number)) {}
};

}  // namespace

extern "C" int snake_forward_cuda(const trainctl_call* call, void* stream) {
  const Operands o(call);
  forward<<<blocks_for(o.size), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      o.x, o.a, static_cast<float*>(call->outputs[0].data), o.size, o.features, o.power);
  return launched(call);
}

extern "C" int snake_backward_cuda(const trainctl_call* call, void* stream) {
  const Operands o(call);
  const auto on = static_cast<cudaStream_t>(stream);
  const auto* dy = static_cast<const float*>(call->output_grads[0].data);
  const trainctl_tensor &dx = call->input_grads[0], &da = call->input_grads[1];
  if (dx.data != nullptr)
    input_gradient<<<blocks_for(o.size), kThreads, 0, on>>>(dy, o.x, o.a, static_cast<float*>(dx.data), o.size,
                                                            o.features, o.power, dx.adds != 0);
  if (da.data != nullptr)
    parameter_gradient<<<blocks_for(o.features), kThreads, 0, on>>>(dy, o.x, o.a, static_cast<float*>(da.data), o.size,
                                                                    o.features, o.power, da.adds != 0);
  return launched(call);
}
