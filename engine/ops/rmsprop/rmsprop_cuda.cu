// The update of RMSprop (rmsprop_rule.h) on a GPU, for the elements of a bucket.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/optimizer_cuda.cuh"
#include "engine/ops/rmsprop/rmsprop_rule.h"

namespace trainctl {
namespace {

template <bool kMomentum, bool kCentered>
CudaKernel launch_rmsprop(const CudaKernelCall& call, Rmsprop<kMomentum, kCentered> rule) {
  return prepare_optimizer<RmspropStep<kMomentum, kCentered>::kStates>(call, rule, "rmsprop_update");
}

CudaKernel prepare_rmsprop_update(const CudaKernelCall& call) {
  return with_rmsprop(call.attrs, [&](auto rule) { return launch_rmsprop(call, rule); });
}

}  // namespace

extern const CudaKernels rmsprop_cuda = {{"rmsprop_update", prepare_rmsprop_update}};

}  // namespace trainctl
