// A kernel made of other kernels, for the steps of an epilogue that a kernel does not compute itself.
#pragma once

#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/ops/kernel.h"
#include "engine/ops/kernel_def.h"

namespace trainctl::cpu {

inline CpuKernel in_order(std::vector<CpuKernel> kernels) {
  if (kernels.size() == 1) return kernels[0];
  return [kernels = std::move(kernels)] {
    for (const CpuKernel& kernel : kernels) kernel();
  };
}

/// The kernel of a fused op, with its own operands.
inline CpuKernel separate_kernel(const KernelDef& kernel, const KernelCall& call, std::vector<TensorArg> in,
                                 std::vector<TensorArg> out) {
  const CpuKernelDef* def = find_cpu_kernel(kernel.name);
  check(def != nullptr, std::string("no CPU kernel of ") + kernel.name);
  KernelCall one = call;
  one.in = std::move(in);
  one.out = std::move(out);
  return def->prepare(one);
}

}  // namespace trainctl::cpu
