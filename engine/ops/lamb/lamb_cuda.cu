// The update of LAMB (lamb_rule.h) on a GPU, for the parameters of a bucket.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/layerwise_cuda.cuh"
#include "engine/ops/lamb/lamb_rule.h"

namespace trainctl {
namespace {

CudaKernel prepare_lamb_update(const CudaKernelCall& call) {
  return prepare_layerwise<2>(call, Lamb::of(call.attrs), "lamb_update");
}

}  // namespace

extern const CudaKernels lamb_cuda = {{"lamb_update", prepare_lamb_update}};

}  // namespace trainctl
