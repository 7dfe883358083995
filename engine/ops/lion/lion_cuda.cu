// The update of Lion (lion_rule.h) on a GPU, for the elements of a bucket.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/optimizer_cuda.cuh"
#include "engine/ops/lion/lion_rule.h"

namespace trainctl {
namespace {

CudaKernel prepare_lion_update(const CudaKernelCall& call) {
  return prepare_optimizer<1>(call, Lion::of(call.attrs), "lion_update");
}

}  // namespace

extern const CudaKernels lion_cuda = {{"lion_update", prepare_lion_update}};

}  // namespace trainctl
