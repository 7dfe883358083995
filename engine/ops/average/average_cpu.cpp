// average_weights: in weights; out average. exchange_average: out weights, average, (bf16 copy of the weights).
// outer_update: in sum of differences; out outer weights, momentum, weights, (bf16 copy of the weights). With
// StepScalars::average_rate 1 the weights become the mean of the replicas', and the momentum stays.
#include <utility>

#include "engine/ops/cpu/half_copy_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

CpuKernel prepare_average_weights(const KernelCall& call) {
  return [w = call.in[0].as<const float>(), average = call.out[0].as<float>(), n = call.out[0].size(),
          scalars = call.scalars] {
    const float rate = scalars->average_rate;
    for (int64_t i = 0; i < n; ++i) average[i] = rate == 1.0f ? w[i] : average[i] + rate * (w[i] - average[i]);
  };
}

CpuKernel prepare_exchange_average(const KernelCall& call) {
  return cpu::with_half_copy(call,
                             [w = call.out[0].as<float>(), average = call.out[1].as<float>(), n = call.out[0].size()] {
                               for (int64_t i = 0; i < n; ++i) std::swap(w[i], average[i]);
                             });
}

CpuKernel prepare_outer_update(const KernelCall& call) {
  const auto rate = static_cast<float>(call.attrs.number("learning_rate")),
             momentum = static_cast<float>(call.attrs.number("momentum")),
             scale = static_cast<float>(call.attrs.number("scale"));
  return cpu::with_half_copy(call, [=, nesterov = call.attrs.flag("nesterov"), sum = call.in[0].as<const float>(),
                                    outer = call.out[0].as<float>(), state = call.out[1].as<float>(),
                                    w = call.out[2].as<float>(), n = call.in[0].size(), scalars = call.scalars] {
    const bool is_mean = scalars->average_rate == 1.0f;
    for (int64_t i = 0; i < n; ++i) {
      const float g = scale * sum[i];
      if (!is_mean) state[i] = momentum * state[i] + g;
      outer[i] -= is_mean ? g : rate * (nesterov ? g + momentum * state[i] : state[i]);
      w[i] = outer[i];
    }
  });
}

}  // namespace

extern const CpuKernels average_cpu = {{"average_weights", prepare_average_weights},
                                       {"exchange_average", prepare_exchange_average},
                                       {"outer_update", prepare_outer_update}};

}  // namespace trainctl
