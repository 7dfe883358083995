// Ranks count messages in each other's memory: one rank writes how many, the other waits for a number.
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/runtime/cuda/message_flags.h"

namespace trainctl::cuda {
namespace {

constexpr unsigned kNanosecondsBetween = 100;

__global__ void set_count(volatile uint32_t* cleared, volatile uint32_t* count, uint32_t value) {
  if (cleared != nullptr) *cleared = 0;
  __threadfence_system();
  *count = value;
}

__global__ void await_count(volatile uint32_t* count, uint32_t value, bool clears) {
  while (*count < value) __nanosleep(kNanosecondsBetween);
  if (clears) *count = 0;
  __threadfence_system();
}

}  // namespace

void enqueue_count(uint32_t* cleared, uint32_t* count, uint32_t value, CudaStream stream) {
  set_count<<<1, 1, 0, stream>>>(cleared, count, value);
  cuda_check_launch("set_count");
}

void enqueue_await(uint32_t* count, uint32_t value, bool clears, CudaStream stream) {
  await_count<<<1, 1, 0, stream>>>(count, value, clears);
  cuda_check_launch("await_count");
}

}  // namespace trainctl::cuda
