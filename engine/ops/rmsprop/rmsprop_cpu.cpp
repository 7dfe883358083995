// The update of RMSprop (rmsprop_rule.h) on a CPU, for the elements of a bucket.
#include "engine/ops/cpu/optimizer_cpu.h"
#include "engine/ops/rmsprop/rmsprop_rule.h"

namespace trainctl {
namespace {

CpuKernel prepare_rmsprop_update(const KernelCall& call) {
  return with_rmsprop(call.attrs,
                      [&](auto rule) { return cpu::prepare_optimizer<decltype(rule.step)::kStates>(call, rule); });
}

}  // namespace

extern const CpuKernels rmsprop_cpu = {{"rmsprop_update", prepare_rmsprop_update}};

}  // namespace trainctl
