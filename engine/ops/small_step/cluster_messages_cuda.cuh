// Messages between the blocks of a cluster, through distributed shared memory, and barriers (mbarriers) that count
// arrivals of threads and bytes of copies. A barrier takes two floats of shared memory, is 8-byte aligned, and is
// initialized once per launch. Its current phase is complete when everything that it expects has arrived.
#pragma once

#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl::cuda {

[[maybe_unused]] __device__ inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// Called by one thread, before others use the barrier: each of its phases expects `threads` arrivals.
__device__ inline void init_barrier(float* barrier, int threads) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(threads) : "memory");
#endif
}
/// Called by each of those threads: all it did before is visible to a thread that has waited for the barrier.
__device__ inline void arrive(float* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}
/// Called by one thread, before others use the barrier: its phase expects `bytes` bytes and `arrivals` arrivals.
__device__ inline void expect_bytes(float* barrier, int bytes, int arrivals) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %2;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes), "r"(arrivals + 1)
      : "memory");
#endif
}
__device__ inline void publish_barriers() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
/// Waits until everything the barrier counts has arrived, including st.async stores from other blocks. A barrier with
/// several phases: phases 0, 2, 4 .. have `parity` 0, the others 1.
__device__ inline void wait_for_bytes(float* barrier, int parity = 0) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#endif
}
/// Returns whether that has happened, without waiting for it.
__device__ inline bool is_complete(float* barrier, int parity) {
  unsigned complete = 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;}"
      : "=r"(complete)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
#endif
  return complete != 0;
}
/// Stores to the address of `to` in another block; that block's `barrier` counts the bytes.
__device__ inline void send(int block, float* to, const float4& v, float* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .b32 there, counter;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 counter, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [counter];}" ::"r"(
          shared_address(to)),
      "r"(shared_address(barrier)), "r"(block), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
#endif
}
__device__ inline void send(int block, float* to, float v, float* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .b32 there, counter;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 counter, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %3, [counter];}" ::"r"(
          shared_address(to)),
      "r"(shared_address(barrier)), "r"(block), "f"(v)
      : "memory");
#endif
}

}  // namespace trainctl::cuda
