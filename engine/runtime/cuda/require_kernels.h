// A build has kernels for some kinds of GPU (TRAINCTL_CUDA_CARDS in cmake/cuda.cmake).
#pragma once

namespace trainctl::cuda {

/// Throws EnvError if this build has no kernels for the current device.
void require_kernels_for_device();

}  // namespace trainctl::cuda
