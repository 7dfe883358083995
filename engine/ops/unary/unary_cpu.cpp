// The functions of functions.h as loops that are vectorised, except for sin, cos and pow with an unusual exponent.
#include <cmath>

#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/elementwise/spans_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/unary/functions.h"

namespace trainctl {
namespace {

struct CpuMaths {
  static float exp(float x) { return cpu::exp(x); }
  static float log(float x) { return cpu::log(x); }
  static float log1p(float x) { return cpu::log1p(x); }
  static float sigmoid(float x) { return cpu::sigmoid(x); }
  static float tanh(float x) { return cpu::tanh(x); }
  static float sqrt(float x) { return std::sqrt(x); }
  static float abs(float x) { return std::fabs(x); }
  static float pow(float x, float exponent) { return std::pow(x, exponent); }
  static float sin(float x) { return std::sin(x); }
  static float cos(float x) { return std::cos(x); }
};

template <Unary kFunction>
void value_span(const float* x, float* y, int64_t n, UnaryParameters p) {
  for (int64_t i = 0; i < n; ++i) y[i] = UnaryFunction<kFunction, CpuMaths>::value(x[i], p);
}

template <Unary kFunction>
void grad_span(const float* dy, const float* at, float* dx, int64_t n, UnaryParameters p) {
  for (int64_t i = 0; i < n; ++i) dx[i] = UnaryFunction<kFunction, CpuMaths>::grad(dy[i], at[i], p);
}

template <Unary kFunction>
CpuKernel prepare_unary(const KernelCall& call) {
  return [p = unary_parameters(kFunction, call.attrs), x = call.in[0].as<float>(), y = call.out[0].as<float>(),
          n = call.out[0].size(), threads = call.threads] {
    cpu::over_elements(
        threads, n, [=](int64_t begin, int64_t end) { value_span<kFunction>(x + begin, y + begin, end - begin, p); });
  };
}

template <Unary kFunction>
CpuKernel prepare_unary_grad(const KernelCall& call) {
  return [p = unary_parameters(kFunction, call.attrs), dy = call.in[0].as<float>(), at = call.in[1].as<float>(),
          dx = call.out[0].as<float>(), n = call.out[0].size(), threads = call.threads] {
    cpu::over_elements(threads, n, [=](int64_t begin, int64_t end) {
      grad_span<kFunction>(dy + begin, at + begin, dx + begin, end - begin, p);
    });
  };
}

}  // namespace

void cpu::unary_span(Unary function, const float* x, float* y, int64_t n, UnaryParameters p) {
  with_unary(function, [&](auto f) { value_span<f.value>(x, y, n, p); });
}

void cpu::unary_grad_span(Unary function, const float* dy, const float* at, float* dx, int64_t n, UnaryParameters p) {
  with_unary(function, [&](auto f) { grad_span<f.value>(dy, at, dx, n, p); });
}

extern const CpuKernels unary_cpu = {{"silu", prepare_unary<Unary::silu>},
                                     {"silu_grad", prepare_unary_grad<Unary::silu>},
                                     {"leaky_relu", prepare_unary<Unary::leaky_relu>},
                                     {"leaky_relu_grad", prepare_unary_grad<Unary::leaky_relu>},
                                     {"softplus", prepare_unary<Unary::softplus>},
                                     {"softplus_grad", prepare_unary_grad<Unary::softplus>},
                                     {"clip", prepare_unary<Unary::clip>},
                                     {"clip_grad", prepare_unary_grad<Unary::clip>},
                                     {"abs", prepare_unary<Unary::abs>},
                                     {"abs_grad", prepare_unary_grad<Unary::abs>},
                                     {"exp", prepare_unary<Unary::exp>},
                                     {"exp_grad", prepare_unary_grad<Unary::exp>},
                                     {"log", prepare_unary<Unary::log>},
                                     {"log_grad", prepare_unary_grad<Unary::log>},
                                     {"sqrt", prepare_unary<Unary::sqrt>},
                                     {"sqrt_grad", prepare_unary_grad<Unary::sqrt>},
                                     {"pow", prepare_unary<Unary::pow>},
                                     {"pow_grad", prepare_unary_grad<Unary::pow>},
                                     {"scale", prepare_unary<Unary::scale>},
                                     {"softcap", prepare_unary<Unary::softcap>},
                                     {"softcap_grad", prepare_unary_grad<Unary::softcap>},
                                     {"quick_gelu", prepare_unary<Unary::quick_gelu>},
                                     {"quick_gelu_grad", prepare_unary_grad<Unary::quick_gelu>},
                                     {"elu", prepare_unary<Unary::elu>},
                                     {"elu_grad", prepare_unary_grad<Unary::elu>},
                                     {"selu", prepare_unary<Unary::selu>},
                                     {"selu_grad", prepare_unary_grad<Unary::selu>},
                                     {"mish", prepare_unary<Unary::mish>},
                                     {"mish_grad", prepare_unary_grad<Unary::mish>},
                                     {"hardswish", prepare_unary<Unary::hardswish>},
                                     {"hardswish_grad", prepare_unary_grad<Unary::hardswish>},
                                     {"hardsigmoid", prepare_unary<Unary::hardsigmoid>},
                                     {"hardsigmoid_grad", prepare_unary_grad<Unary::hardsigmoid>},
                                     {"softsign", prepare_unary<Unary::softsign>},
                                     {"softsign_grad", prepare_unary_grad<Unary::softsign>},
                                     {"log_sigmoid", prepare_unary<Unary::log_sigmoid>},
                                     {"log_sigmoid_grad", prepare_unary_grad<Unary::log_sigmoid>},
                                     {"sin", prepare_unary<Unary::sin>},
                                     {"sin_grad", prepare_unary_grad<Unary::sin>},
                                     {"cos", prepare_unary<Unary::cos>},
                                     {"cos_grad", prepare_unary_grad<Unary::cos>}};

}  // namespace trainctl
