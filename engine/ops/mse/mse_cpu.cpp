// loss = scale * sum (p - l)^2.  dp = 2 * scale * (p - l).
#include "engine/ops/cpu/loss_with_grad_cpu.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

CpuKernel prepare_mse(const KernelCall& call) {
  return [p = call.in[0].as<float>(), l = call.in[1].as<float>(), n = call.in[0].size(), loss = call.out[0].as<float>(),
          add = call.out[0].accumulate, scale = call.attrs.number("scale", 1.0)] {
    const double total = cpu::sum(n, [=](int64_t i) {
      const double off = double{p[i]} - l[i];
      return off * off;
    });
    *loss = static_cast<float>((add ? *loss : 0.0) + scale * total);
  };
}

CpuKernel prepare_mse_grad(const KernelCall& call) {
  return [p = call.in[0].as<float>(), l = call.in[1].as<float>(), n = call.in[0].size(), dp = call.out[0].as<float>(),
          scale = static_cast<float>(2.0 * call.attrs.number("scale", 1.0))] {
    for (int64_t i = 0; i < n; ++i) dp[i] = scale * (p[i] - l[i]);
  };
}

CpuKernel prepare_mse_with_grad(const KernelCall& call) {
  return cpu::loss_with_grad(call, prepare_mse, prepare_mse_grad);
}

}  // namespace

extern const CpuKernels mse_cpu = {
    {"mse", prepare_mse}, {"mse_grad", prepare_mse_grad}, {"mse_with_grad", prepare_mse_with_grad}};

}  // namespace trainctl
