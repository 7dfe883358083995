// Stands in for the timer of GPU collectives in a build without CUDA.
#include "engine/base/error.h"
#include "engine/runtime/measure/collective_timer.h"

namespace trainctl {

std::unique_ptr<CollectiveTimer> make_cuda_collective_timer(std::shared_ptr<SharedMemory>, int, int64_t, double) {
  throw EnvError("this trainctl was built without CUDA; use --device cpu");
}

}  // namespace trainctl
