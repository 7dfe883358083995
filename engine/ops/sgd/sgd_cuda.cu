// Same as torch.optim.SGD: g += weight_decay * w; buf = momentum * buf + g;
// w -= lr * (nesterov ? g + momentum * buf : buf). buf starts as 0, so the first step's buf is g.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/optimizer_cuda.cuh"

namespace trainctl {
namespace {

struct SgdStep {
  float momentum, decay;
  bool nesterov;
  float rate = 0, scale = 1;  // learning rate and clip factor of the step

  __device__ void update(float g, float& w, std::array<float, 0>&) const { w -= rate * (scale * g + decay * w); }
  __device__ void update(float g, float& w, std::array<float, 1>& buffer) const {
    const float grad = scale * g + decay * w;
    buffer[0] = momentum * buffer[0] + grad;
    w -= rate * (nesterov ? grad + momentum * buffer[0] : buffer[0]);
  }
};

struct Sgd {
  SgdStep step;

  __device__ SgdStep at(const StepScalars& scalars, float clip) const {
    return {step.momentum, step.decay, step.nesterov, scalars.learning_rate, clip};
  }
};

CudaKernel prepare_sgd_update(const CudaKernelCall& call) {
  const Sgd rule{{static_cast<float>(call.attrs.number("momentum", 0.0)),
                  static_cast<float>(call.attrs.number("weight_decay", 0.0)), call.attrs.flag("nesterov")}};
  if (rule.step.momentum == 0.0f) return prepare_optimizer<0>(call, rule, "sgd_update");
  return prepare_optimizer<1>(call, rule, "sgd_update");
}

}  // namespace

extern const CudaKernels sgd_cuda = {{"sgd_update", prepare_sgd_update}};

}  // namespace trainctl
