// The kernels of the family on NVIDIA GPUs.
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

CudaKernel prepare_route(const CudaKernelCall& call);         // route_cuda.cu
CudaKernel prepare_route_grad(const CudaKernelCall& call);    // route_cuda.cu
CudaKernel prepare_experts(const CudaKernelCall& call);       // experts_cuda.cu
CudaKernel prepare_experts_grad(const CudaKernelCall& call);  // experts_cuda.cu

extern const CudaKernels moe_cuda = {{"route", prepare_route},
                                     {"route_grad", prepare_route_grad},
                                     {"experts", prepare_experts},
                                     {"experts_grad", prepare_experts_grad}};

}  // namespace trainctl
