// Checks that this build has kernels for the current GPU, by asking the runtime for one of them.
#include <string>

#include "engine/base/error.h"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/runtime/cuda/require_kernels.h"

namespace trainctl::cuda {
namespace {

__global__ void any_kernel() {}

}  // namespace

void require_kernels_for_device() {
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, any_kernel);
  if (status != cudaErrorNoKernelImageForDevice && status != cudaErrorInvalidDeviceFunction)
    return cuda_check(status, "cudaFuncGetAttributes");
  int device = 0;
  cudaDeviceProp properties;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  throw EnvError("this trainctl has no kernels for " + std::string(properties.name) + " (compute capability " +
                 std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                 "): install a package of trainctl, which has kernels for Ampere and later, or build trainctl "
                 "on a machine with such a card");
}

}  // namespace trainctl::cuda
