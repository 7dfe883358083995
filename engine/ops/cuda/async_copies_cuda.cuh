// Copies from global to shared memory that a thread requests ahead and waits for in groups.
#pragma once

#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl {

/// Requests a copy of 16 bytes that bypasses L1; writes zeros if `there` is false, but `from` must still be a valid
/// address.
__device__ inline void request_16(void* to, const void* from, bool there) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(there ? 16 : 0)
      : "memory");
#endif
}

/// Ends a group: all requests of this thread since the end of the last one.
__device__ inline void end_group_of_requests() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Waits for all groups of this thread but the last `kPending`.
template <int kPending>
__device__ inline void wait_for_requests() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace trainctl
