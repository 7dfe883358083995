// where: y = condition ? a : b.  masked_fill: y = mask ? value : x, or the reverse. numpy broadcasting.
#include "engine/ops/cpu/broadcast_cpu.h"
#include "engine/ops/elementwise/spans_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {

void cpu::where_span(const float* condition, const float* a, const float* b, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float first = a[i], second = b[i];  // read unconditionally: a conditional load is not vectorised
    y[i] = condition[i] != 0.0f ? first : second;
  }
}

void cpu::masked_fill_span(const float* x, const float* mask, float* y, int64_t n, float value, bool invert) {
  for (int64_t i = 0; i < n; ++i) {
    const float kept = x[i];
    y[i] = (mask[i] != 0.0f) != invert ? value : kept;
  }
}

namespace {

/// Prepares loops over the broadcast operands. In the innermost loop each operand has stride 0 or 1.
CpuKernel prepare_where(const KernelCall& call) {
  const Shape& shape = call.out[0].shape;
  std::array<Shape, 4> strides;
  for (size_t k = 0; k < 3; ++k) strides[k] = cpu::broadcast_strides(call.in[k].shape, shape);
  strides[3] = cpu::strides_of(shape);
  cpu::Loops<4> loops;
  for (size_t d = 0; d < shape.size(); ++d)
    loops.add(shape[d], {strides[0][d], strides[1][d], strides[2][d], strides[3][d]});
  std::array<int64_t, 4> step{};
  const int64_t n = loops.take_inner(step);
  const bool contiguous = step[0] == 1 && step[1] == 1 && step[2] == 1;
  return [=, condition = call.in[0].as<float>(), a = call.in[1].as<float>(), b = call.in[2].as<float>(),
          out = call.out[0].as<float>()] {
    loops.run([&](const std::array<int64_t, 4>& at) {
      const float *c = condition + at[0], *x = a + at[1], *y = b + at[2];
      float* to = out + at[3];
      if (contiguous) return cpu::where_span(c, x, y, to, n);
      for (int64_t i = 0; i < n; ++i) to[i] = c[i * step[0]] != 0.0f ? x[i * step[1]] : y[i * step[2]];
    });
  };
}

CpuKernel prepare_masked_fill(const KernelCall& call) {
  const auto value = static_cast<float>(call.attrs.number("value", 0));
  const bool invert = call.attrs.flag("invert");
  return cpu::broadcast_map(call, [=](float x, float mask) { return (mask != 0.0f) != invert ? value : x; });
}

}  // namespace

extern const CpuKernels where_cpu = {{"where", prepare_where}, {"masked_fill", prepare_masked_fill}};

}  // namespace trainctl
