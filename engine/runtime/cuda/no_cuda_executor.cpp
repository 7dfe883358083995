// Stands in for the CUDA executor in a build without CUDA.
#include "engine/base/error.h"
#include "engine/runtime/cuda/cuda_executor.h"
#include "engine/runtime/cuda/devices.h"

namespace trainctl {

std::optional<int> cuda_version_of_build() { return std::nullopt; }

void begin_cuda(int) {}

std::unique_ptr<Executor> make_cuda_executor(const Program&, Communicator&, const ExecutorOptions&,
                                             const CudaExecutorOptions&) {
  throw EnvError("this trainctl was built without CUDA; set launch.device=cpu");
}

}  // namespace trainctl
