// A CUDA kernel made of other kernels, for the steps of an epilogue that a kernel does not compute itself.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/kernel_def.h"

namespace trainctl::cuda {

inline CudaKernel in_order(std::vector<CudaKernel> kernels) {
  if (kernels.size() == 1) return kernels[0];
  return [kernels = std::move(kernels)](CudaStream stream) {
    for (const CudaKernel& kernel : kernels) kernel(stream);
  };
}

/// The kernel of a fused op, with its own operands.
inline CudaKernel separate_kernel(const KernelDef& def, const CudaKernelCall& call, std::vector<TensorArg> in,
                                  std::vector<TensorArg> out) {
  const CudaKernelDef* kernel = find_cuda_kernel(def.name);
  check(kernel != nullptr, std::string("no CUDA kernel of ") + def.name);
  CudaKernelCall one = call;
  one.in = std::move(in);
  one.out = std::move(out);
  return kernel->prepare(one);
}

}  // namespace trainctl::cuda
