// The kernels of the family on NVIDIA GPUs.
#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

CudaKernel prepare_route(const CudaKernelCall& call);          // route_cuda.cu
CudaKernel prepare_route_grad(const CudaKernelCall& call);     // route_cuda.cu
CudaKernel prepare_experts(const CudaKernelCall& call);        // experts_cuda.cu
CudaKernel prepare_experts_grad(const CudaKernelCall& call);   // experts_cuda.cu
CudaKernel prepare_expert_load(const CudaKernelCall& call);    // balance_cuda.cu
CudaKernel prepare_sequence_load(const CudaKernelCall& call);  // balance_cuda.cu
CudaKernel prepare_count_load(const CudaKernelCall& call);     // balance_cuda.cu
CudaKernel prepare_balance_bias(const CudaKernelCall& call);   // balance_cuda.cu
CudaKernel prepare_balance(const CudaKernelCall& call);        // balance_cuda.cu
CudaKernel prepare_balance_grad(const CudaKernelCall& call);   // balance_cuda.cu
CudaKernel prepare_drop_pairs(const CudaKernelCall& call);     // balance_cuda.cu
CudaKernel prepare_place_tokens(const CudaKernelCall& call);   // token_exchange_cuda.cu
CudaKernel prepare_pack_tokens(const CudaKernelCall& call);    // token_exchange_cuda.cu
CudaKernel prepare_sum_tokens(const CudaKernelCall& call);     // token_exchange_cuda.cu

extern const CudaKernels moe_cuda = {{"route", prepare_route},
                                     {"route_grad", prepare_route_grad},
                                     {"experts", prepare_experts},
                                     {"experts_grad", prepare_experts_grad},
                                     {"expert_load", prepare_expert_load},
                                     {"sequence_load", prepare_sequence_load},
                                     {"count_load", prepare_count_load},
                                     {"balance_bias", prepare_balance_bias},
                                     {"balance_losses", prepare_balance},
                                     {"balance_losses_grad", prepare_balance_grad},
                                     {"drop_pairs", prepare_drop_pairs},
                                     {"place_tokens", prepare_place_tokens},
                                     {"pack_tokens", prepare_pack_tokens},
                                     {"sum_tokens", prepare_sum_tokens}};

}  // namespace trainctl
