// The prepare function of every CPU kernel, by op folder. all_cpu_kernels.cpp gives them their names.
#pragma once

#include "engine/ops/kernel.h"

namespace trainctl {

CpuKernel prepare_relu(const KernelCall& call);
CpuKernel prepare_relu_grad(const KernelCall& call);
CpuKernel prepare_sigmoid(const KernelCall& call);
CpuKernel prepare_sigmoid_grad(const KernelCall& call);
CpuKernel prepare_tanh(const KernelCall& call);
CpuKernel prepare_tanh_grad(const KernelCall& call);
CpuKernel prepare_gelu(const KernelCall& call);
CpuKernel prepare_gelu_grad(const KernelCall& call);

CpuKernel prepare_add(const KernelCall& call);
CpuKernel prepare_mul(const KernelCall& call);
CpuKernel prepare_sum_to(const KernelCall& call);
CpuKernel prepare_add_bias(const KernelCall& call);
CpuKernel prepare_bias_grad(const KernelCall& call);
CpuKernel prepare_matmul(const KernelCall& call);
CpuKernel prepare_matmul_weight_grad(const KernelCall& call);

CpuKernel prepare_reshape(const KernelCall& call);
CpuKernel prepare_transpose(const KernelCall& call);
CpuKernel prepare_softmax(const KernelCall& call);
CpuKernel prepare_softmax_grad(const KernelCall& call);
CpuKernel prepare_dropout(const KernelCall& call);
CpuKernel prepare_embedding(const KernelCall& call);
CpuKernel prepare_embedding_grad(const KernelCall& call);
CpuKernel prepare_reduce_sum(const KernelCall& call);
CpuKernel prepare_broadcast_to(const KernelCall& call);

CpuKernel prepare_batch_norm_mean(const KernelCall& call);
CpuKernel prepare_batch_norm_var(const KernelCall& call);
CpuKernel prepare_batch_norm(const KernelCall& call);
CpuKernel prepare_batch_norm_running(const KernelCall& call);
CpuKernel prepare_batch_norm_grad_stats(const KernelCall& call);
CpuKernel prepare_batch_norm_grad(const KernelCall& call);
CpuKernel prepare_layer_norm(const KernelCall& call);
CpuKernel prepare_layer_norm_grad(const KernelCall& call);
CpuKernel prepare_layer_norm_param_grad(const KernelCall& call);

CpuKernel prepare_mae(const KernelCall& call);
CpuKernel prepare_mae_grad(const KernelCall& call);
CpuKernel prepare_mse(const KernelCall& call);
CpuKernel prepare_mse_grad(const KernelCall& call);
CpuKernel prepare_softmax_cross_entropy(const KernelCall& call);
CpuKernel prepare_softmax_cross_entropy_grad(const KernelCall& call);

CpuKernel prepare_softmax_cross_entropy_with_grad(const KernelCall& call);
CpuKernel prepare_mae_with_grad(const KernelCall& call);
CpuKernel prepare_mse_with_grad(const KernelCall& call);
CpuKernel prepare_elementwise(const KernelCall& call);
CpuKernel prepare_copy_slice(const KernelCall& call);
CpuKernel prepare_pack(const KernelCall& call);
CpuKernel prepare_unpack(const KernelCall& call);
CpuKernel prepare_accumulate(const KernelCall& call);
CpuKernel prepare_zero(const KernelCall& call);
CpuKernel prepare_sum_squares(const KernelCall& call);
CpuKernel prepare_sgd_update(const KernelCall& call);
CpuKernel prepare_adam_update(const KernelCall& call);

}  // namespace trainctl
