// The list of CUDA kernels: the names of all_cpu_kernels.cpp, in its order.
#include "engine/ops/cuda_kernels.h"

namespace trainctl {
namespace {

constexpr CudaKernelDef kKernels[] = {
    {"relu", prepare_relu_cuda},
    {"relu_grad", prepare_relu_grad_cuda},
    {"sigmoid", prepare_sigmoid_cuda},
    {"sigmoid_grad", prepare_sigmoid_grad_cuda},
    {"tanh", prepare_tanh_cuda},
    {"tanh_grad", prepare_tanh_grad_cuda},
    {"gelu", prepare_gelu_cuda},
    {"gelu_grad", prepare_gelu_grad_cuda},
    {"add", prepare_add_cuda},
    {"mul", prepare_mul_cuda},
    {"sum_to", prepare_sum_to_cuda},
    {"add_bias", prepare_add_bias_cuda},
    {"bias_grad", prepare_bias_grad_cuda},
    {"reshape", prepare_reshape_cuda},
    {"transpose", prepare_transpose_cuda},
    {"softmax", prepare_softmax_cuda},
    {"softmax_grad", prepare_softmax_grad_cuda},
    {"dropout", prepare_dropout_cuda},
    {"batch_norm_mean", prepare_batch_norm_mean_cuda},
    {"batch_norm_var", prepare_batch_norm_var_cuda},
    {"batch_norm", prepare_batch_norm_cuda},
    {"batch_norm_running", prepare_batch_norm_running_cuda},
    {"batch_norm_grad_stats", prepare_batch_norm_grad_stats_cuda},
    {"batch_norm_grad", prepare_batch_norm_grad_cuda},
    {"layer_norm", prepare_layer_norm_cuda},
    {"layer_norm_grad", prepare_layer_norm_grad_cuda},
    {"layer_norm_param_grad", prepare_layer_norm_param_grad_cuda},
    {"embedding", prepare_embedding_cuda},
    {"embedding_grad", prepare_embedding_grad_cuda},
    {"reduce_sum", prepare_reduce_sum_cuda},
    {"broadcast_to", prepare_broadcast_to_cuda},
    {"mae", prepare_mae_cuda},
    {"mae_grad", prepare_mae_grad_cuda},
    {"mse", prepare_mse_cuda},
    {"mse_grad", prepare_mse_grad_cuda},
    {"softmax_cross_entropy", prepare_softmax_cross_entropy_cuda},
    {"softmax_cross_entropy_grad", prepare_softmax_cross_entropy_grad_cuda},
    // Not graph ops.
    {"softmax_cross_entropy_with_grad", prepare_softmax_cross_entropy_with_grad_cuda},
    {"mae_with_grad", prepare_mae_with_grad_cuda},
    {"mse_with_grad", prepare_mse_with_grad_cuda},
    {"elementwise", prepare_elementwise_cuda},
    {"copy_slice", prepare_copy_slice_cuda},
    {"pack", prepare_pack_cuda},
    {"unpack", prepare_unpack_cuda},
    {"accumulate", prepare_accumulate_cuda},
    {"matmul", prepare_matmul_cuda},
    {"matmul_weight_grad", prepare_matmul_weight_grad_cuda},
    {"zero", prepare_zero_cuda},
    {"sum_squares", prepare_sum_squares_cuda},
    {"sgd_update", prepare_sgd_update_cuda},
    {"adam_update", prepare_adam_update_cuda},
};

}  // namespace

std::span<const CudaKernelDef> all_cuda_kernels() { return kKernels; }

const CudaKernelDef* find_cuda_kernel(std::string_view name) {
  for (const CudaKernelDef& kernel : kKernels) {
    if (name == kernel.name) return &kernel;
  }
  return nullptr;
}

}  // namespace trainctl
