// Same as torch.optim.Adagrad: g += wd * w; sum += g^2; w -= lr * g / (sqrt(sum) + eps).
#include <cmath>

#include "engine/ops/cpu/clip_cpu.h"
#include "engine/ops/cpu/half_copy_cpu.h"
#include "engine/ops/cpu/learning_rate_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

CpuKernel prepare_adagrad_update(const KernelCall& call) {
  CpuKernel update = [g = call.in[0].as<float>(), w = call.out[0].as<float>(), sum = call.out[1].as<float>(),
                      n = call.out[0].size(), clip = cpu::clip_of(call), rate = cpu::LearningRate(call),
                      eps = static_cast<float>(call.attrs.number("eps", 1e-8)),
                      decay = static_cast<float>(call.attrs.number("weight_decay", 0.0))] {
    if (clip.skips()) return;
    const float lr = rate.now(), scale = clip.scale();
    for (int64_t i = 0; i < n; ++i) {
      const float grad = scale * clip.bounded(g[i]) + decay * w[i];
      sum[i] += grad * grad;
      w[i] -= lr * grad / (std::sqrt(sum[i]) + eps);
    }
  };
  return cpu::with_half_copy(call, std::move(update));
}

}  // namespace

extern const CpuKernels adagrad_cpu = {{"adagrad_update", prepare_adagrad_update}};

}  // namespace trainctl
