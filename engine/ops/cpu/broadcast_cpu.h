// out = f(a, b) over two broadcast operands.
#pragma once

#include "engine/ops/cpu/strided_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl::cpu {

/// out = f(a, b) for two operands that are broadcast to out's shape by numpy's rules. The innermost loop has contiguous
/// or constant operands.
template <class F>
CpuKernel broadcast_map(const KernelCall& call, F f) {
  const Shape& shape = call.out[0].shape;
  const Shape of_a = broadcast_strides(call.in[0].shape, shape);
  const Shape of_b = broadcast_strides(call.in[1].shape, shape);
  const Shape of_out = strides_of(shape);
  Loops<3> loops;
  for (size_t d = 0; d < shape.size(); ++d) loops.add(shape[d], {of_a[d], of_b[d], of_out[d]});
  std::array<int64_t, 3> step{};
  const int64_t n = loops.take_inner(step);
  const auto row = [step, f](const float* x, const float* y, float* to, int64_t count) {
    if (step[0] == 1 && step[1] == 1) {
      for (int64_t i = 0; i < count; ++i) to[i] = f(x[i], y[i]);
    } else if (step[0] == 1) {
      const float same = *y;
      for (int64_t i = 0; i < count; ++i) to[i] = f(x[i], same);
    } else if (step[1] == 1) {
      const float same = *x;
      for (int64_t i = 0; i < count; ++i) to[i] = f(same, y[i]);
    } else {
      std::fill_n(to, count, f(*x, *y));
    }
  };
  return [=, a = call.in[0].as<float>(), b = call.in[1].as<float>(), out = call.out[0].as<float>(),
          threads = call.threads] {
    if (loops.ndim == 0) {
      over_elements(threads, n, [&](int64_t begin, int64_t end) {
        row(a + begin * step[0], b + begin * step[1], out + begin, end - begin);
      });
      return;
    }
    over_outermost(threads, loops, n,
                   [&](const std::array<int64_t, 3>& at) { row(a + at[0], b + at[1], out + at[2], n); });
  };
}

}  // namespace trainctl::cpu
