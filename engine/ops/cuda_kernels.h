// The prepare function of every CUDA kernel, by op folder. all_cuda_kernels.cpp gives them their names.
#pragma once

#include "engine/ops/cuda/cuda_kernel.h"

namespace trainctl {

CudaKernel prepare_relu_cuda(const CudaKernelCall& call);
CudaKernel prepare_relu_grad_cuda(const CudaKernelCall& call);
CudaKernel prepare_sigmoid_cuda(const CudaKernelCall& call);
CudaKernel prepare_sigmoid_grad_cuda(const CudaKernelCall& call);
CudaKernel prepare_tanh_cuda(const CudaKernelCall& call);
CudaKernel prepare_tanh_grad_cuda(const CudaKernelCall& call);
CudaKernel prepare_gelu_cuda(const CudaKernelCall& call);
CudaKernel prepare_gelu_grad_cuda(const CudaKernelCall& call);

CudaKernel prepare_add_cuda(const CudaKernelCall& call);
CudaKernel prepare_mul_cuda(const CudaKernelCall& call);
CudaKernel prepare_sum_to_cuda(const CudaKernelCall& call);
CudaKernel prepare_add_bias_cuda(const CudaKernelCall& call);
CudaKernel prepare_bias_grad_cuda(const CudaKernelCall& call);

CudaKernel prepare_reshape_cuda(const CudaKernelCall& call);
CudaKernel prepare_transpose_cuda(const CudaKernelCall& call);
CudaKernel prepare_softmax_cuda(const CudaKernelCall& call);
CudaKernel prepare_softmax_grad_cuda(const CudaKernelCall& call);
CudaKernel prepare_dropout_cuda(const CudaKernelCall& call);
CudaKernel prepare_embedding_cuda(const CudaKernelCall& call);
CudaKernel prepare_embedding_grad_cuda(const CudaKernelCall& call);
CudaKernel prepare_reduce_sum_cuda(const CudaKernelCall& call);
CudaKernel prepare_broadcast_to_cuda(const CudaKernelCall& call);

CudaKernel prepare_batch_norm_mean_cuda(const CudaKernelCall& call);
CudaKernel prepare_batch_norm_var_cuda(const CudaKernelCall& call);
CudaKernel prepare_batch_norm_cuda(const CudaKernelCall& call);
CudaKernel prepare_batch_norm_running_cuda(const CudaKernelCall& call);
CudaKernel prepare_batch_norm_grad_stats_cuda(const CudaKernelCall& call);
CudaKernel prepare_batch_norm_grad_cuda(const CudaKernelCall& call);
CudaKernel prepare_layer_norm_cuda(const CudaKernelCall& call);
CudaKernel prepare_layer_norm_grad_cuda(const CudaKernelCall& call);
CudaKernel prepare_layer_norm_param_grad_cuda(const CudaKernelCall& call);

CudaKernel prepare_mae_cuda(const CudaKernelCall& call);
CudaKernel prepare_mae_grad_cuda(const CudaKernelCall& call);
CudaKernel prepare_mse_cuda(const CudaKernelCall& call);
CudaKernel prepare_mse_grad_cuda(const CudaKernelCall& call);
CudaKernel prepare_softmax_cross_entropy_cuda(const CudaKernelCall& call);
CudaKernel prepare_softmax_cross_entropy_grad_cuda(const CudaKernelCall& call);

CudaKernel prepare_softmax_cross_entropy_with_grad_cuda(const CudaKernelCall& call);
CudaKernel prepare_mae_with_grad_cuda(const CudaKernelCall& call);
CudaKernel prepare_mse_with_grad_cuda(const CudaKernelCall& call);
CudaKernel prepare_elementwise_cuda(const CudaKernelCall& call);
CudaKernel prepare_copy_slice_cuda(const CudaKernelCall& call);
CudaKernel prepare_pack_cuda(const CudaKernelCall& call);
CudaKernel prepare_unpack_cuda(const CudaKernelCall& call);
CudaKernel prepare_accumulate_cuda(const CudaKernelCall& call);
CudaKernel prepare_matmul_cuda(const CudaKernelCall& call);
CudaKernel prepare_matmul_weight_grad_cuda(const CudaKernelCall& call);
CudaKernel prepare_zero_cuda(const CudaKernelCall& call);
CudaKernel prepare_sum_squares_cuda(const CudaKernelCall& call);
CudaKernel prepare_sgd_update_cuda(const CudaKernelCall& call);
CudaKernel prepare_adam_update_cuda(const CudaKernelCall& call);

}  // namespace trainctl
