// Stands in for the timer of CUDA kernels in a build without CUDA.
#include "engine/base/error.h"
#include "engine/runtime/measure/kernel_timer.h"

namespace trainctl {

std::unique_ptr<KernelTimer> make_cuda_kernel_timer() {
  throw EnvError("this trainctl was built without CUDA; use --device cpu");
}

}  // namespace trainctl
