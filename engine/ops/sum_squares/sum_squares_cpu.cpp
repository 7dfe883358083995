// out[1] = sum of in^2: this rank's term of the squared global norm. not_finite: whether the norm is nan or infinite.
#include <cmath>

#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

CpuKernel prepare_sum_squares(const KernelCall& call) {
  return
      [n = call.in[0].size(), x = call.in[0].as<float>(), out = call.out[0].as<float>(), add = call.out[0].accumulate] {
        const double total = cpu::sum(n, [x](int64_t i) { return double{x[i]} * x[i]; });
        *out = static_cast<float>((add ? *out : 0.0) + total);
      };
}

CpuKernel prepare_not_finite(const KernelCall& call) {
  return [x = call.in[0].as<float>(), out = call.out[0].as<float>()] { *out = std::isfinite(*x) ? 0.0f : 1.0f; };
}

}  // namespace

extern const CpuKernels sum_squares_cpu = {{"sum_squares", prepare_sum_squares}, {"count_not_finite", prepare_not_finite}};

}  // namespace trainctl
