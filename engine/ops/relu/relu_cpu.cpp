// y = max(x, 0); a NaN stays one.  dx = dy where y > 0.
#include "engine/ops/cpu_kernels.h"

namespace trainctl {

CpuKernel prepare_relu(const KernelCall& call) {
  return [x = call.in[0].as<float>(), y = call.out[0].as<float>(), n = call.out[0].size()] {
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] < 0.0f ? 0.0f : x[i];
  };
}

CpuKernel prepare_relu_grad(const KernelCall& call) {
  return
      [dy = call.in[0].as<float>(), y = call.in[1].as<float>(), dx = call.out[0].as<float>(), n = call.out[0].size()] {
        for (int64_t i = 0; i < n; ++i) {
      const float slope = dy[i];  // read in any case: a load under a condition is not vectorised
      dx[i] = y[i] > 0.0f ? slope : 0.0f;
    }
      };
}

}  // namespace trainctl
