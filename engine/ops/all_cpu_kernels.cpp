// The list of CPU kernels: names as in all_ops.cpp, then those that only compiled programs use.
#include "engine/ops/cpu_kernels.h"

namespace trainctl {
namespace {

constexpr CpuKernelDef kKernels[] = {
    {"relu", prepare_relu},
    {"relu_grad", prepare_relu_grad},
    {"sigmoid", prepare_sigmoid},
    {"sigmoid_grad", prepare_sigmoid_grad},
    {"tanh", prepare_tanh},
    {"tanh_grad", prepare_tanh_grad},
    {"gelu", prepare_gelu},
    {"gelu_grad", prepare_gelu_grad},
    {"add", prepare_add},
    {"mul", prepare_mul},
    {"sum_to", prepare_sum_to},
    {"add_bias", prepare_add_bias},
    {"bias_grad", prepare_bias_grad},
    {"matmul", prepare_matmul},
    {"matmul_weight_grad", prepare_matmul_weight_grad},
    {"reshape", prepare_reshape},
    {"transpose", prepare_transpose},
    {"softmax", prepare_softmax},
    {"softmax_grad", prepare_softmax_grad},
    {"dropout", prepare_dropout},
    {"batch_norm_mean", prepare_batch_norm_mean},
    {"batch_norm_var", prepare_batch_norm_var},
    {"batch_norm", prepare_batch_norm},
    {"batch_norm_running", prepare_batch_norm_running},
    {"batch_norm_grad_stats", prepare_batch_norm_grad_stats},
    {"batch_norm_grad", prepare_batch_norm_grad},
    {"layer_norm", prepare_layer_norm},
    {"layer_norm_grad", prepare_layer_norm_grad},
    {"layer_norm_param_grad", prepare_layer_norm_param_grad},
    {"embedding", prepare_embedding},
    {"embedding_grad", prepare_embedding_grad},
    {"reduce_sum", prepare_reduce_sum},
    {"broadcast_to", prepare_broadcast_to},
    {"mae", prepare_mae},
    {"mae_grad", prepare_mae_grad},
    {"mse", prepare_mse},
    {"mse_grad", prepare_mse_grad},
    {"softmax_cross_entropy", prepare_softmax_cross_entropy},
    {"softmax_cross_entropy_grad", prepare_softmax_cross_entropy_grad},
    // Not graph ops.
    {"softmax_cross_entropy_with_grad", prepare_softmax_cross_entropy_with_grad},
    {"mae_with_grad", prepare_mae_with_grad},
    {"mse_with_grad", prepare_mse_with_grad},
    {"elementwise", prepare_elementwise},
    {"copy_slice", prepare_copy_slice},
    {"pack", prepare_pack},
    {"unpack", prepare_unpack},
    {"accumulate", prepare_accumulate},
    {"zero", prepare_zero},
    {"sum_squares", prepare_sum_squares},
    {"sgd_update", prepare_sgd_update},
    {"adam_update", prepare_adam_update},
};

}  // namespace

std::span<const CpuKernelDef> all_cpu_kernels() { return kKernels; }

const CpuKernelDef* find_cpu_kernel(std::string_view name) {
  for (const CpuKernelDef& kernel : kKernels) {
    if (name == kernel.name) return &kernel;
  }
  return nullptr;
}

}  // namespace trainctl
