// Helpers of all CUDA kernel launchers: error checks, grids, element types.
#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl {
namespace {

constexpr int kHopper = 90;

__global__ void built_as_all_are() {}

}  // namespace

bool built_for_hopper() {
  static const bool hopper = [] {
    cudaFuncAttributes attributes{};
    cuda_check(cudaFuncGetAttributes(&attributes, built_as_all_are), "cudaFuncGetAttributes");
    return attributes.ptxVersion >= kHopper;
  }();
  return hopper;
}

}  // namespace trainctl
