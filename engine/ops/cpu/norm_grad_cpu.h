// The gradient of a norm together with its fused epilogue (ops/norm_grad.h): runs the separate kernels one after
// another.
#pragma once

#include "engine/ops/cpu/kernels_in_order_cpu.h"
#include "engine/ops/norm_grad.h"

namespace trainctl::cpu {

/// `plain` computes dx; `parameters` computes the gradients of gamma and beta; `statistics`: tensors such as mean and
/// variance that the norm has.
inline CpuKernel prepare_norm_grad(const KernelCall& call, PrepareCpuKernel plain, const KernelDef& parameters,
                                   size_t statistics) {
  const NormGradCall<KernelCall> grad(call);
  const TensorArg& dx = grad.plain.out[0];
  std::vector<CpuKernel> kernels = {plain(grad.plain)};
  if (!grad.parameters.empty())
    kernels.push_back(separate_kernel(parameters, grad.plain, grad.of_parameters(statistics), grad.parameters));
  if (grad.residual != nullptr)
    kernels.push_back(separate_kernel(residual_kernel(), grad.plain, {dx, *grad.residual}, {dx}));
  return in_order(std::move(kernels));
}

}  // namespace trainctl::cpu
