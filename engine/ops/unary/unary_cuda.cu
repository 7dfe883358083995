// The functions of functions.h over packs.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/map_cuda.cuh"
#include "engine/ops/cuda/unary_cuda.cuh"

namespace trainctl {
namespace {

template <Unary kFunction>
CudaKernel prepare_unary(const CudaKernelCall& call) {
  return map_unary(call, UnaryValue<kFunction>{unary_parameters(kFunction, call.attrs)}, unary_def(kFunction).name);
}

template <Unary kFunction>
CudaKernel prepare_unary_grad(const CudaKernelCall& call) {
  const UnaryGrad<kFunction> grad{unary_parameters(kFunction, call.attrs)};
  return map_binary(call, grad, unary_def(kFunction).grad_name);
}

}  // namespace

extern const CudaKernels unary_cuda = {{"silu", prepare_unary<Unary::silu>},
                                       {"silu_grad", prepare_unary_grad<Unary::silu>},
                                       {"leaky_relu", prepare_unary<Unary::leaky_relu>},
                                       {"leaky_relu_grad", prepare_unary_grad<Unary::leaky_relu>},
                                       {"softplus", prepare_unary<Unary::softplus>},
                                       {"softplus_grad", prepare_unary_grad<Unary::softplus>},
                                       {"clip", prepare_unary<Unary::clip>},
                                       {"clip_grad", prepare_unary_grad<Unary::clip>},
                                       {"abs", prepare_unary<Unary::abs>},
                                       {"abs_grad", prepare_unary_grad<Unary::abs>},
                                       {"exp", prepare_unary<Unary::exp>},
                                       {"exp_grad", prepare_unary_grad<Unary::exp>},
                                       {"log", prepare_unary<Unary::log>},
                                       {"log_grad", prepare_unary_grad<Unary::log>},
                                       {"sqrt", prepare_unary<Unary::sqrt>},
                                       {"sqrt_grad", prepare_unary_grad<Unary::sqrt>},
                                       {"pow", prepare_unary<Unary::pow>},
                                       {"pow_grad", prepare_unary_grad<Unary::pow>},
                                       {"scale", prepare_unary<Unary::scale>},
                                       {"softcap", prepare_unary<Unary::softcap>},
                                       {"softcap_grad", prepare_unary_grad<Unary::softcap>},
                                       {"quick_gelu", prepare_unary<Unary::quick_gelu>},
                                       {"quick_gelu_grad", prepare_unary_grad<Unary::quick_gelu>},
                                       {"elu", prepare_unary<Unary::elu>},
                                       {"elu_grad", prepare_unary_grad<Unary::elu>},
                                       {"selu", prepare_unary<Unary::selu>},
                                       {"selu_grad", prepare_unary_grad<Unary::selu>},
                                       {"mish", prepare_unary<Unary::mish>},
                                       {"mish_grad", prepare_unary_grad<Unary::mish>},
                                       {"hardswish", prepare_unary<Unary::hardswish>},
                                       {"hardswish_grad", prepare_unary_grad<Unary::hardswish>},
                                       {"hardsigmoid", prepare_unary<Unary::hardsigmoid>},
                                       {"hardsigmoid_grad", prepare_unary_grad<Unary::hardsigmoid>},
                                       {"softsign", prepare_unary<Unary::softsign>},
                                       {"softsign_grad", prepare_unary_grad<Unary::softsign>},
                                       {"log_sigmoid", prepare_unary<Unary::log_sigmoid>},
                                       {"log_sigmoid_grad", prepare_unary_grad<Unary::log_sigmoid>},
                                       {"sin", prepare_unary<Unary::sin>},
                                       {"sin_grad", prepare_unary_grad<Unary::sin>},
                                       {"cos", prepare_unary<Unary::cos>},
                                       {"cos_grad", prepare_unary_grad<Unary::cos>}};

}  // namespace trainctl
