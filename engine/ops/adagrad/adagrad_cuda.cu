// Same as torch.optim.Adagrad: g += wd * w; sum += g^2; w -= lr * g / (sqrt(sum) + eps).
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/optimizer_cuda.cuh"

namespace trainctl {
namespace {

struct AdagradStep {
  float eps, decay, scale, lr;

  __device__ void update(float g, float& w, std::array<float, 1>& state) const {
    const float grad = scale * g + decay * w;
    state[0] += grad * grad;
    w -= lr * grad / (sqrtf(state[0]) + eps);
  }
};

struct Adagrad {
  float eps, decay;

  __device__ AdagradStep at(const StepScalars& s, float clip) const { return {eps, decay, clip, s.learning_rate}; }
};

CudaKernel prepare_adagrad_update(const CudaKernelCall& call) {
  const Adagrad rule{static_cast<float>(call.attrs.number("eps", 1e-8)),
                     static_cast<float>(call.attrs.number("weight_decay", 0.0))};
  return prepare_optimizer<1>(call, rule, "adagrad_update");
}

}  // namespace

extern const CudaKernels adagrad_cuda = {{"adagrad_update", prepare_adagrad_update}};

}  // namespace trainctl
