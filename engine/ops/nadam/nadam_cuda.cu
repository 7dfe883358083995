// The update of NAdam (nadam_rule.h) on a GPU, for the elements of a bucket.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/optimizer_cuda.cuh"
#include "engine/ops/nadam/nadam_rule.h"

namespace trainctl {
namespace {

CudaKernel prepare_nadam_update(const CudaKernelCall& call) {
  return prepare_optimizer<2>(call, Nadam::of(call.attrs), "nadam_update");
}

}  // namespace

extern const CudaKernels nadam_cuda = {{"nadam_update", prepare_nadam_update}};

}  // namespace trainctl
