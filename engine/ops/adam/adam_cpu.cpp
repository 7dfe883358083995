// Same as torch.optim.Adam and AdamW (decoupled): m += (1 - b1) (g - m); v = b2 v + (1 - b2) g^2;
// w -= lr / bias1 * m / (sqrt(v) / sqrt(bias2) + eps). Weight decay: g += wd * w, or w *= 1 - lr * wd when decoupled.
// With amsgrad, sqrt(v) is replaced by the root of the largest v so far.
#include <cmath>

#include "engine/ops/cpu/clip_cpu.h"
#include "engine/ops/cpu/half_copy_cpu.h"
#include "engine/ops/cpu/learning_rate_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

CpuKernel prepare_adam_update(const KernelCall& call) {
  const double beta1 = call.attrs.number("beta1", 0.9), beta2 = call.attrs.number("beta2", 0.999);
  const auto decay = static_cast<float>(call.attrs.number("weight_decay", 0.0));
  const bool decoupled = call.attrs.flag("decoupled");
  const bool amsgrad = call.attrs.flag("amsgrad");
  check(!amsgrad || call.out.size() > 3, "adam_update with amsgrad needs the largest v as fourth output");
  CpuKernel update = [g = call.in[0].as<float>(), w = call.out[0].as<float>(), m = call.out[1].as<float>(),
                      v = call.out[2].as<float>(), largest = amsgrad ? call.out[3].as<float>() : nullptr,
                      n = call.out[0].size(), clip = cpu::clip_of(call), rate = cpu::LearningRate(call),
                      scalars = call.scalars, threads = call.threads, rate1 = static_cast<float>(1.0 - beta1),
                      keep2 = static_cast<float>(beta2), rate2 = static_cast<float>(1.0 - beta2),
                      eps = static_cast<float>(call.attrs.number("eps", 1e-8)),
                      coupled_decay = decoupled ? 0.0f : decay, decoupled_decay = decoupled ? decay : 0.0f] {
    if (clip.skips()) return;
    const float lr = rate.now();
    const float scale = clip.scale();
    const float step = lr / scalars->adam_bias1;
    const float inverse_sqrt_bias2 = 1.0f / std::sqrt(scalars->adam_bias2);
    const float decaying = lr * decoupled_decay;  // a factor 1 - decaying would be rounded in each step
    const auto bounded = clip.bound();
    cpu::over_elements(threads, n, [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
      for (int64_t i = begin; largest == nullptr && i < end; ++i) {
        const float grad = scale * bounded(g[i]) + coupled_decay * w[i];
        m[i] += rate1 * (grad - m[i]);
        v[i] = keep2 * v[i] + rate2 * grad * grad;
        w[i] -= decaying * w[i] + step * m[i] / (std::sqrt(v[i]) * inverse_sqrt_bias2 + eps);
      }
#pragma GCC ivdep
      for (int64_t i = begin; largest != nullptr && i < end; ++i) {
        const float grad = scale * bounded(g[i]) + coupled_decay * w[i];
        m[i] += rate1 * (grad - m[i]);
        v[i] = keep2 * v[i] + rate2 * grad * grad;
        largest[i] = v[i] < largest[i] ? largest[i] : v[i];  // keeps NaN
        w[i] -= decaying * w[i] + step * m[i] / (std::sqrt(largest[i]) * inverse_sqrt_bias2 + eps);
      }
    });
  };
  return cpu::with_half_copy(call, std::move(update));
}

}  // namespace

extern const CpuKernels adam_cpu = {{"adam_update", prepare_adam_update}};

}  // namespace trainctl
