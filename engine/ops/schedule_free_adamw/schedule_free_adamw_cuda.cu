// The update of schedule-free AdamW (schedule_free_adamw_rule.h) on a GPU, for the elements of a bucket.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/optimizer_cuda.cuh"
#include "engine/ops/schedule_free_adamw/schedule_free_adamw_rule.h"

namespace trainctl {
namespace {

CudaKernel prepare_schedule_free_adamw_update(const CudaKernelCall& call) {
  return prepare_optimizer<3>(call, ScheduleFree::of(call.attrs), "schedule_free_adamw_update");
}

}  // namespace

extern const CudaKernels schedule_free_adamw_cuda = {
    {"schedule_free_adamw_update", prepare_schedule_free_adamw_update}};

}  // namespace trainctl
