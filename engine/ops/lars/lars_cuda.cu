// The update of LARS (lars_rule.h) on a GPU, for the parameters of a bucket.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/layerwise_cuda.cuh"
#include "engine/ops/lars/lars_rule.h"

namespace trainctl {
namespace {

CudaKernel prepare_lars_update(const CudaKernelCall& call) {
  return prepare_layerwise<1>(call, Lars::of(call.attrs), "lars_update");
}

}  // namespace

extern const CudaKernels lars_cuda = {{"lars_update", prepare_lars_update}};

}  // namespace trainctl
