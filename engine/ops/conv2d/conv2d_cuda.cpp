// The convolution kernels of GPUs are cuDNN's; none is there yet (OpCases::without_cuda).
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

extern const CudaKernels conv2d_cuda = {};

}  // namespace trainctl
