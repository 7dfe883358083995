// Same as torch.optim.Adam and AdamW (decoupled): m += (1 - b1) (g - m); v = b2 v + (1 - b2) g^2;
// w -= lr / bias1 * m / (sqrt(v) / sqrt(bias2) + eps). Weight decay: g += wd * w, or w *= 1 - lr * wd when decoupled.
// With amsgrad, sqrt(v) is replaced by the root of the largest v so far, a third state.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/optimizer_cuda.cuh"

namespace trainctl {
namespace {

struct AdamStep {
  float rate1, keep2, rate2, eps, coupled_decay;
  float scale, step, inverse_sqrt_bias2;
  float decaying;  ///< subtracted fraction of the weight: a factor 1 - decaying would be rounded in each step

  __device__ void update(float g, float& w, std::array<float, 2>& state) const {
    float &m = state[0], &v = state[1];
    const float grad = scale * g + coupled_decay * w;
    m += rate1 * (grad - m);
    v = keep2 * v + rate2 * grad * grad;
    w -= decaying * w + step * m / (sqrtf(v) * inverse_sqrt_bias2 + eps);
  }
  __device__ void update(float g, float& w, std::array<float, 3>& state) const {
    float &m = state[0], &v = state[1], &largest = state[2];
    const float grad = scale * g + coupled_decay * w;
    m += rate1 * (grad - m);
    v = keep2 * v + rate2 * grad * grad;
    largest = v < largest ? largest : v;  // keeps NaN
    w -= decaying * w + step * m / (sqrtf(largest) * inverse_sqrt_bias2 + eps);
  }
};

struct Adam {
  float rate1, keep2, rate2, eps, coupled_decay, decoupled_decay;

  __device__ AdamStep at(const StepScalars& s, float clip) const {
    const float lr = s.learning_rate;
    return {rate1,
            keep2,
            rate2,
            eps,
            coupled_decay,
            clip,
            lr / s.adam_bias1,
            1.0f / sqrtf(s.adam_bias2),
            lr * decoupled_decay};
  }
};

CudaKernel prepare_adam_update(const CudaKernelCall& call) {
  const double beta1 = call.attrs.number("beta1", 0.9), beta2 = call.attrs.number("beta2", 0.999);
  const auto decay = static_cast<float>(call.attrs.number("weight_decay", 0.0));
  const bool decoupled = call.attrs.flag("decoupled");
  const Adam rule{static_cast<float>(1.0 - beta1), static_cast<float>(beta2),
                  static_cast<float>(1.0 - beta2), static_cast<float>(call.attrs.number("eps", 1e-8)),
                  decoupled ? 0.0f : decay,        decoupled ? decay : 0.0f};
  if (call.attrs.flag("amsgrad")) return prepare_optimizer<3>(call, rule, "adam_update");
  return prepare_optimizer<2>(call, rule, "adam_update");
}

}  // namespace

extern const CudaKernels adam_cuda = {{"adam_update", prepare_adam_update}};

}  // namespace trainctl
