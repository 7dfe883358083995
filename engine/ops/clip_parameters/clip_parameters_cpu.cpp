// Clips each parameter's gradient by its own norm, on CPUs. The inputs are the weights, whose sharding alone is used;
// the outputs are the gradients, which are scaled in place.
#include <algorithm>
#include <cmath>

#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/loss_scale.h"
#include "engine/ops/whole_parameters.h"

namespace trainctl {
namespace {

CpuKernel prepare_clip_parameters(const KernelCall& call) {
  return [g = call.out[0].as<float>(), most = static_cast<float>(call.attrs.number("norm")),
          parameters = whole_parameters(call), gradients = GradientScale::of(call)] {
    const float inverse = gradients.inverse();
    for (const WholeParameter& p : parameters) {
      float* const of = g + p.first;
      const double squares = cpu::sum(p.size(), [of](int64_t i) { return double{of[i]} * of[i]; });
      const float scale = std::min(1.0f, most / (static_cast<float>(std::sqrt(squares)) * inverse + 1e-6f));
      for (int64_t i = 0; i < p.size(); ++i) of[i] *= scale;
    }
  };
}

}  // namespace

extern const CpuKernels clip_parameters_cpu = {{"clip_parameters", prepare_clip_parameters}};

}  // namespace trainctl
