// loss = scale * sum |p - l|.  dp = scale * sign(p - l), 0 where they are equal.
#include <cmath>

#include "engine/ops/cpu/loss_with_grad_cpu.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

CpuKernel prepare_mae(const KernelCall& call) {
  return [p = call.in[0].as<float>(), l = call.in[1].as<float>(), n = call.in[0].size(), loss = call.out[0].as<float>(),
          add = call.out[0].accumulate, scale = call.attrs.number("scale", 1.0)] {
    const double total = cpu::sum(n, [=](int64_t i) { return std::fabs(double{p[i]} - l[i]); });
    *loss = static_cast<float>((add ? *loss : 0.0) + scale * total);
  };
}

CpuKernel prepare_mae_grad(const KernelCall& call) {
  return [p = call.in[0].as<float>(), l = call.in[1].as<float>(), n = call.in[0].size(), dp = call.out[0].as<float>(),
          scale = static_cast<float>(call.attrs.number("scale", 1.0))] {
    const float up = scale, down = -scale;
    for (int64_t i = 0; i < n; ++i) {
      const float off = p[i] - l[i];  // keeps 0 and NaN
      const float above = off > 0.0f ? up : off;
      dp[i] = off < 0.0f ? down : above;
    }
  };
}

CpuKernel prepare_mae_with_grad(const KernelCall& call) {
  return cpu::loss_with_grad(call, prepare_mae, prepare_mae_grad);
}

}  // namespace

extern const CpuKernels mae_cpu = {
    {"mae", prepare_mae}, {"mae_grad", prepare_mae_grad}, {"mae_with_grad", prepare_mae_with_grad}};

}  // namespace trainctl
