// Clips each parameter's gradient by its own norm. Two launches per parameter: partial norms, then the scaling.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/layerwise_cuda.cuh"

namespace trainctl {
namespace {

__global__ void __launch_bounds__(kLayerwiseThreads) squares_of_parameter(const float* g, int64_t size, double* parts) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ double shared[kLayerwiseThreads];
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kLayerwiseThreads;
  double squares = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kLayerwiseThreads + threadIdx.x; i < size; i += stride)
    squares += static_cast<double>(g[i]) * g[i];
  const double total = layerwise_total(squares, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kLayerwiseThreads)
    clip_parameter(float* g, int64_t size, float most, GradientScale gradients, const double* parts) {
  wait_for_kernel_before();
  let_next_kernel_start();
  __shared__ double shared[kLayerwiseThreads];
  double squares = 0;
  for (unsigned b = threadIdx.x; b < gridDim.x; b += kLayerwiseThreads) squares += parts[b];
  const double total = layerwise_total(squares, shared);
  const float scale = fminf(1.0f, most / (static_cast<float>(sqrt(total)) * gradients.inverse() + 1e-6f));
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kLayerwiseThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kLayerwiseThreads + threadIdx.x; i < size; i += stride)
    g[i] *= scale;
}

CudaKernel prepare_clip_parameters(const CudaKernelCall& call) {
  check(call.out[0].dtype == DType::f32, "gradients that are clipped by parameter are f32");
  call.scratch->need(kMostLayerwiseBlocks * static_cast<int64_t>(sizeof(double)));
  return [g = call.out[0].as<float>(), most = static_cast<float>(call.attrs.number("norm")),
          parameters = whole_parameters(call), gradients = GradientScale::of(call),
          scratch = call.scratch](CudaStream stream) {
    auto* const parts = static_cast<double*>(scratch->memory());
    for (const WholeParameter& p : parameters) {
      const auto blocks = static_cast<unsigned>(
          std::clamp<int64_t>(ceil_div(p.size(), kLayerwiseThreads * kLayerwiseElements), 1, kMostLayerwiseBlocks));
      launch(squares_of_parameter, blocks, kLayerwiseThreads, 0, stream, "clip_parameters",
             static_cast<const float*>(g + p.first), p.size(), parts);
      launch(clip_parameter, blocks, kLayerwiseThreads, 0, stream, "clip_parameters", g + p.first, p.size(), most,
             gradients, static_cast<const double*>(parts));
    }
  };
}

}  // namespace

extern const CudaKernels clip_parameters_cuda = {{"clip_parameters", prepare_clip_parameters}};

}  // namespace trainctl
