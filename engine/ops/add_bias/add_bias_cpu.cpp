// y[.., n, ..] = x[.., n, ..] + b[n] along attr dim.  db[n] = sum of dy over the other dims.
#include "engine/ops/add_bias/bias_shape.h"
#include "engine/ops/cpu/broadcast_cpu.h"
#include "engine/ops/cpu/reduce_cpu.h"

namespace trainctl {
namespace {

CpuKernel prepare_add_bias(const KernelCall& call) {
  if (call.attrs.has("dim"))
    return cpu::broadcast_map(with_broadcast_bias(call), [](float x, float b) { return x + b; });
  const int64_t n = call.in[1].size();
  const int64_t rows = n == 0 ? 0 : call.out[0].size() / n;
  return
      [=, x = call.in[0].as<float>(), b = call.in[1].as<float>(), y = call.out[0].as<float>(), threads = call.threads] {
        cpu::each_row(threads, rows, n, [&](int64_t r) {
          for (int64_t i = 0; i < n; ++i) y[r * n + i] = x[r * n + i] + b[i];
        });
      };
}

CpuKernel prepare_bias_grad(const KernelCall& call) {
  const TensorArg& dy = call.in[0];
  const TensorArg& db = call.out[0];
  return [sum = cpu::SumOverDims(dy.shape, cpu::broadcast_strides(bias_shape(dy.shape, call.attrs), dy.shape)),
          from = dy.as<float>(), to = db.as<float>(), add = db.accumulate,
          rate = epilogue_of(call.attrs).descend ? &call.scalars->learning_rate : nullptr,
          threads = call.threads] { sum.run(from, to, rate == nullptr ? 1.0 : -double{*rate}, add, threads); };
}

}  // namespace

extern const CpuKernels add_bias_cpu = {{"add_bias", prepare_add_bias}, {"bias_grad", prepare_bias_grad}};

}  // namespace trainctl
