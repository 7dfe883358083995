// y = scale * sum of x over dims (scale = 1/count makes it the mean); broadcast_to is its backward.
#include "engine/ops/cpu/reduce_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

CpuKernel prepare_reduce_sum(const KernelCall& call) {
  const TensorArg& in = call.in[0];
  const TensorArg& out = call.out[0];
  const cpu::SumOverDims sum(in.shape, cpu::kept_strides(in.shape, out.shape, call.attrs.ints("dims")));
  return [=, x = in.as<float>(), y = out.as<float>(), add = out.accumulate, scale = call.attrs.number("scale", 1.0),
          threads = call.threads] { sum.run(x, y, scale, add, threads); };
}

/// out = scale * in, repeated along the dims that `in` lacks.
CpuKernel prepare_broadcast_to(const KernelCall& call) {
  const TensorArg& in = call.in[0];
  const TensorArg& out = call.out[0];
  const Shape from = cpu::kept_strides(out.shape, in.shape, call.attrs.ints("dims"));
  const Shape to = cpu::strides_of(out.shape);
  cpu::Loops<2> loops;
  for (size_t d = 0; d < out.shape.size(); ++d) loops.add(out.shape[d], {from[d], to[d]});
  std::array<int64_t, 2> step{};
  const int64_t n = loops.take_inner(step);
  return [=, x = in.as<float>(), y = out.as<float>(), scale = static_cast<float>(call.attrs.number("scale", 1.0)),
          threads = call.threads] {
    cpu::over_outermost(threads, loops, n, [&](const std::array<int64_t, 2>& at) {
      const float* src = x + at[0];
      float* dst = y + at[1];
      if (step[0] == 0) {
        const float same = scale * *src;
        for (int64_t i = 0; i < n; ++i) dst[i] = same;
      } else {
        for (int64_t i = 0; i < n; ++i) dst[i] = scale * src[i];
      }
    });
  };
}

}  // namespace

extern const CpuKernels reduce_sum_cpu = {{"reduce_sum", prepare_reduce_sum}, {"broadcast_to", prepare_broadcast_to}};

}  // namespace trainctl
