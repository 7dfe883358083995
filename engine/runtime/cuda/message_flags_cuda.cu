// Ranks count messages in each other's memory: one thread waits for a count.
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/runtime/cuda/message_flags.h"

namespace trainctl::cuda {
namespace {

constexpr unsigned kNanosecondsBetween = 100;

__global__ void await_count(volatile uint32_t* count, uint32_t value, bool clears) {
  while (*count < value) __nanosleep(kNanosecondsBetween);
  if (clears) *count = 0;
  __threadfence_system();
}

}  // namespace

void enqueue_await(uint32_t* count, uint32_t value, bool clears, CudaStream stream) {
  await_count<<<1, 1, 0, stream>>>(count, value, clears);
  cuda_check_launch("await_count");
}

}  // namespace trainctl::cuda
