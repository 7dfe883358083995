// Undoes a broadcast: y = sum of x over the dims in which y's shape is 1 or missing.
#include "engine/ops/cpu/reduce_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

CpuKernel prepare_sum_to(const KernelCall& call) {
  const TensorArg& in = call.in[0];
  const TensorArg& out = call.out[0];
  return [sum = cpu::SumOverDims(in.shape, cpu::broadcast_strides(out.shape, in.shape)), x = in.as<float>(),
          y = out.as<float>(), add = out.accumulate, threads = call.threads] { sum.run(x, y, 1.0, add, threads); };
}

}  // namespace

extern const CpuKernels sum_to_cpu = {{"sum_to", prepare_sum_to}};

}  // namespace trainctl
