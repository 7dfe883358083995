// What blocks of a cluster send into each other's shared memory, and copies that all threads wait for: counted by
// mbarriers, each of two floats of shared memory, 8-byte aligned, passed once in a launch.
#pragma once

#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl::cuda {

[[maybe_unused]] __device__ inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// By one thread, before others know of it: the barrier is passed once so many threads have noted something there, and
/// again each time that they have.
__device__ inline void prepare_notes(float* barrier, int threads) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(threads) : "memory");
#endif
}
/// By each of them: all that it did before is done.
__device__ inline void note(float* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}
/// By each of them, after its copies: once they have come.
__device__ inline void note_copies(float* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}
/// By one thread, before others know of it: the barrier is passed once `bytes` have come, and so many notes.
__device__ inline void expect_bytes(float* barrier, int bytes, int notes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %2;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes), "r"(notes + 1)
      : "memory");
#endif
}
/// A note to another block that nothing will come from here.
__device__ inline void send_note(int block, float* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .b32 counter;\n"
      "mapa.shared::cluster.u32 counter, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [counter];}" ::"r"(shared_address(barrier)),
      "r"(block)
      : "memory");
#endif
}
__device__ inline void publish_barriers() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
/// What was counted is there then, also what came from other blocks: it came by st.async. A barrier that is passed
/// again and again: the times of even number, from 0, with `parity` 0, the others with 1.
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
/// Whether it is there by now.
__device__ inline bool have_come(float* barrier, int parity) {
  unsigned come = 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;}"
      : "=r"(come)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
#endif
  return come != 0;
}
/// To where `to` is in another block, counted by its `barrier`.
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
