// c = a + b, a - b, a * b, a / b, max(a, b), min(a, b) and larger(a, b) with numpy broadcasting.
#include <functional>

#include "engine/ops/cpu/broadcast_cpu.h"
#include "engine/ops/elementwise/spans_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

template <class F>
void span(const float* a, const float* b, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = F{}(a[i], b[i]);
}

/// The larger operand, or NaN if either operand is NaN, as in NumPy.
struct Maximum {
  float operator()(float a, float b) const { return a > b ? a : b >= a ? b : a + b; }
};
struct Minimum {
  float operator()(float a, float b) const { return a < b ? a : b <= a ? b : a + b; }
};
struct Larger {
  float operator()(float a, float b) const { return a > b ? 1.0f : a == b ? 0.5f : 0.0f; }
};

template <class F>
CpuKernel prepare_binary(const KernelCall& call) {
  return cpu::broadcast_map(call, F{});
}

}  // namespace

void cpu::add_span(const float* a, const float* b, float* y, int64_t n) { span<std::plus<>>(a, b, y, n); }
void cpu::sub_span(const float* a, const float* b, float* y, int64_t n) { span<std::minus<>>(a, b, y, n); }
void cpu::mul_span(const float* a, const float* b, float* y, int64_t n) { span<std::multiplies<>>(a, b, y, n); }
void cpu::div_span(const float* a, const float* b, float* y, int64_t n) { span<std::divides<>>(a, b, y, n); }

extern const CpuKernels binary_cpu = {
    {"add", prepare_binary<std::plus<>>},       {"sub", prepare_binary<std::minus<>>},
    {"mul", prepare_binary<std::multiplies<>>}, {"div", prepare_binary<std::divides<>>},
    {"maximum", prepare_binary<Maximum>},       {"minimum", prepare_binary<Minimum>},
    {"larger", prepare_binary<Larger>}};

}  // namespace trainctl
