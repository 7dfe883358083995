// The update of schedule-free AdamW (schedule_free_adamw_rule.h) on a CPU, for the elements of a bucket.
#include "engine/ops/cpu/optimizer_cpu.h"
#include "engine/ops/schedule_free_adamw/schedule_free_adamw_rule.h"

namespace trainctl {
namespace {

CpuKernel prepare_schedule_free_adamw_update(const KernelCall& call) {
  return cpu::prepare_optimizer<3>(call, ScheduleFree::of(call.attrs));
}

}  // namespace

extern const CpuKernels schedule_free_adamw_cpu = {{"schedule_free_adamw_update", prepare_schedule_free_adamw_update}};

}  // namespace trainctl
