// The update of NAdam (nadam_rule.h) on a CPU, for the elements of a bucket.
#include "engine/ops/cpu/optimizer_cpu.h"
#include "engine/ops/nadam/nadam_rule.h"

namespace trainctl {
namespace {

CpuKernel prepare_nadam_update(const KernelCall& call) {
  return cpu::prepare_optimizer<2>(call, Nadam::of(call.attrs));
}

}  // namespace

extern const CpuKernels nadam_cpu = {{"nadam_update", prepare_nadam_update}};

}  // namespace trainctl
