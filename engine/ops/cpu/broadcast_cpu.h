// out = f(a, b) over two broadcast operands.
#pragma once

#include "engine/ops/cpu/strided_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl::cpu {

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
  return [=, a = call.in[0].as<float>(), b = call.in[1].as<float>(), out = call.out[0].as<float>()] {
    loops.run([&](const std::array<int64_t, 3>& at) {
      const float* x = a + at[0];
      const float* y = b + at[1];
      float* to = out + at[2];
      if (step[0] == 1 && step[1] == 1) {
        for (int64_t i = 0; i < n; ++i) to[i] = f(x[i], y[i]);
      } else if (step[0] == 1) {
        const float same = *y;
        for (int64_t i = 0; i < n; ++i) to[i] = f(x[i], same);
      } else if (step[1] == 1) {
        const float same = *x;
        for (int64_t i = 0; i < n; ++i) to[i] = f(same, y[i]);
      } else {
        const float same = f(*x, *y);
        for (int64_t i = 0; i < n; ++i) to[i] = same;
      }
    });
  };
}

}  // namespace trainctl::cpu
