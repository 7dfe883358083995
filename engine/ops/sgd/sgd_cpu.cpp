// Same as torch.optim.SGD: g += weight_decay * w; buf = momentum * buf + g;
// w -= lr * (nesterov ? g + momentum * buf : buf). buf starts as 0, so the first step's buf is g.
#include "engine/ops/cpu/clip_cpu.h"
#include "engine/ops/cpu/half_copy_cpu.h"
#include "engine/ops/cpu/learning_rate_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

/// One loop per combination of momentum and weight decay; without both, it is w -= lr * g.
CpuKernel update_of(const KernelCall& call) {
  const auto momentum = static_cast<float>(call.attrs.number("momentum", 0.0));
  const auto decay = static_cast<float>(call.attrs.number("weight_decay", 0.0));
  const bool nesterov = call.attrs.flag("nesterov");
  const auto* g = call.in[0].as<float>();
  auto* w = call.out[0].as<float>();
  const int64_t n = call.out[0].size();
  const int threads = call.threads;
  const cpu::Clip clip = cpu::clip_of(call);
  const cpu::LearningRate rate(call);
  if (momentum == 0.0f && decay == 0.0f) {
    return [=] {
      if (clip.skips()) return;
      const float step = rate.now() * clip.scale();
      cpu::over_elements(threads, n, [=, bounded = clip.bound()](int64_t begin, int64_t end) {
#pragma GCC ivdep
        for (int64_t i = begin; i < end; ++i) w[i] -= step * bounded(g[i]);
      });
    };
  }
  if (momentum == 0.0f) {
    return [=] {
      if (clip.skips()) return;
      const float lr = rate.now(), scale = clip.scale();
      cpu::over_elements(threads, n, [=, bounded = clip.bound()](int64_t begin, int64_t end) {
#pragma GCC ivdep
        for (int64_t i = begin; i < end; ++i) w[i] -= lr * (scale * bounded(g[i]) + decay * w[i]);
      });
    };
  }
  check(call.out.size() > 1, "sgd_update with momentum needs its buffer as second output");
  return [=, buf = call.out[1].as<float>()] {
    if (clip.skips()) return;
    const float lr = rate.now(), scale = clip.scale(), ahead = nesterov ? momentum : 0.0f;
    cpu::over_elements(threads, n, [=, bounded = clip.bound()](int64_t begin, int64_t end) {
#pragma GCC ivdep
      for (int64_t i = begin; i < end; ++i) {
        const float grad = scale * bounded(g[i]) + decay * w[i];
        buf[i] = momentum * buf[i] + grad;
        w[i] -= lr * (nesterov ? grad + ahead * buf[i] : buf[i]);
      }
    });
  };
}

CpuKernel prepare_sgd_update(const KernelCall& call) { return cpu::with_half_copy(call, update_of(call)); }

}  // namespace

extern const CpuKernels sgd_cpu = {{"sgd_update", prepare_sgd_update}};

}  // namespace trainctl
