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

extern const CudaKernels unary_cuda = {{"silu", prepare_unary<Unary::silu>, kTakesF16},
                                       {"silu_grad", prepare_unary_grad<Unary::silu>, kTakesF16},
                                       {"leaky_relu", prepare_unary<Unary::leaky_relu>, kTakesF16},
                                       {"leaky_relu_grad", prepare_unary_grad<Unary::leaky_relu>, kTakesF16},
                                       {"softplus", prepare_unary<Unary::softplus>, kTakesF16},
                                       {"softplus_grad", prepare_unary_grad<Unary::softplus>, kTakesF16},
                                       {"clip", prepare_unary<Unary::clip>, kTakesF16},
                                       {"clip_grad", prepare_unary_grad<Unary::clip>, kTakesF16},
                                       {"abs", prepare_unary<Unary::abs>, kTakesF16},
                                       {"abs_grad", prepare_unary_grad<Unary::abs>, kTakesF16},
                                       {"exp", prepare_unary<Unary::exp>, kTakesF16},
                                       {"exp_grad", prepare_unary_grad<Unary::exp>, kTakesF16},
                                       {"log", prepare_unary<Unary::log>, kTakesF16},
                                       {"log_grad", prepare_unary_grad<Unary::log>, kTakesF16},
                                       {"sqrt", prepare_unary<Unary::sqrt>, kTakesF16},
                                       {"sqrt_grad", prepare_unary_grad<Unary::sqrt>, kTakesF16},
                                       {"pow", prepare_unary<Unary::pow>, kTakesF16},
                                       {"pow_grad", prepare_unary_grad<Unary::pow>, kTakesF16},
                                       {"scale", prepare_unary<Unary::scale>, kTakesF16},
                                       {"softcap", prepare_unary<Unary::softcap>, kTakesF16},
                                       {"softcap_grad", prepare_unary_grad<Unary::softcap>, kTakesF16},
                                       {"quick_gelu", prepare_unary<Unary::quick_gelu>, kTakesF16},
                                       {"quick_gelu_grad", prepare_unary_grad<Unary::quick_gelu>, kTakesF16},
                                       {"elu", prepare_unary<Unary::elu>, kTakesF16},
                                       {"elu_grad", prepare_unary_grad<Unary::elu>, kTakesF16},
                                       {"selu", prepare_unary<Unary::selu>, kTakesF16},
                                       {"selu_grad", prepare_unary_grad<Unary::selu>, kTakesF16},
                                       {"mish", prepare_unary<Unary::mish>, kTakesF16},
                                       {"mish_grad", prepare_unary_grad<Unary::mish>, kTakesF16},
                                       {"hardswish", prepare_unary<Unary::hardswish>, kTakesF16},
                                       {"hardswish_grad", prepare_unary_grad<Unary::hardswish>, kTakesF16},
                                       {"hardsigmoid", prepare_unary<Unary::hardsigmoid>, kTakesF16},
                                       {"hardsigmoid_grad", prepare_unary_grad<Unary::hardsigmoid>, kTakesF16},
                                       {"softsign", prepare_unary<Unary::softsign>, kTakesF16},
                                       {"softsign_grad", prepare_unary_grad<Unary::softsign>, kTakesF16},
                                       {"log_sigmoid", prepare_unary<Unary::log_sigmoid>, kTakesF16},
                                       {"log_sigmoid_grad", prepare_unary_grad<Unary::log_sigmoid>, kTakesF16},
                                       {"sin", prepare_unary<Unary::sin>, kTakesF16},
                                       {"sin_grad", prepare_unary_grad<Unary::sin>, kTakesF16},
                                       {"cos", prepare_unary<Unary::cos>, kTakesF16},
                                       {"cos_grad", prepare_unary_grad<Unary::cos>, kTakesF16}};

}  // namespace trainctl
