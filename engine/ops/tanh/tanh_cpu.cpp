// y = tanh x.  dx = dy * (1 - y^2).
#include "engine/ops/cpu_kernels.h"
#include "engine/ops/cpu_math.h"

namespace trainctl {

CpuKernel prepare_tanh(const KernelCall& call) {
  return [x = call.in[0].as<float>(), y = call.out[0].as<float>(), n = call.out[0].size()] {
    for (int64_t i = 0; i < n; ++i) y[i] = cpu::tanh(x[i]);
  };
}

CpuKernel prepare_tanh_grad(const KernelCall& call) {
  return
      [dy = call.in[0].as<float>(), y = call.in[1].as<float>(), dx = call.out[0].as<float>(), n = call.out[0].size()] {
        for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * (1.0f - y[i] * y[i]);
      };
}

}  // namespace trainctl
