// For sources that CMake compiles for Hopper's own instructions (sm_90a): engine/CMakeLists.txt lists them and defines
// TRAINCTL_BUILT_FOR_90A as 1, or as 0 in a build for other GPUs.
#pragma once

#include "engine/ops/cuda/launch_cuda.h"

#ifndef TRAINCTL_BUILT_FOR_90A
#error "engine/CMakeLists.txt does not list this source among those for Hopper, so its kernels would never run"
#endif

namespace trainctl {

/// True if the current device is a Hopper GPU and this source contains code for it: products of warp groups exist on no
/// other architecture.
inline bool is_hopper() {
#if TRAINCTL_BUILT_FOR_90A
  int device = 0, major = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  return major == 9 && built_for_hopper();
#else
  return false;
#endif
}

}  // namespace trainctl
