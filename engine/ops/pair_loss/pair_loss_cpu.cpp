// loss = scale * sum of loss(p, l), summed in double.  dp = scale * slope(p, l).
#include <cmath>

#include "engine/ops/cpu/loss_with_grad_cpu.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/pair_loss/functions.h"

namespace trainctl {
namespace {

struct PairLossMaths {
  template <class Number>
  static Number abs(Number x) {
    return std::fabs(x);
  }
  static float exp(float x) { return cpu::exp(x); }
  static float log(float x) { return cpu::log(x); }
  static float log1p(float x) { return cpu::log1p(x); }
  static float sigmoid(float x) { return cpu::sigmoid(x); }
  static float pow(float x, float exponent) { return exponent == 2.0f ? x * x : std::pow(x, exponent); }
};

template <class Loss>
CpuKernel prepare_pair_loss(const KernelCall& call) {
  return [p = call.in[0].as<float>(), l = call.in[1].as<float>(), n = call.in[0].size(), loss = call.out[0].as<float>(),
          add = call.out[0].accumulate, scale = call.attrs.number("scale", 1.0), f = Loss(call.attrs),
          skips = call.attrs.flag("nan_is_no_label")] {
    const auto term = [=](int64_t i) { return f.template loss<PairLossMaths>(double{p[i]}, double{l[i]}); };
    const double total =
        skips ? cpu::sum(n, [=](int64_t i) { return std::isnan(l[i]) ? 0.0 : term(i); }) : cpu::sum(n, term);
    *loss = static_cast<float>((add ? *loss : 0.0) + scale * total);
  };
}

template <class Loss>
CpuKernel prepare_pair_loss_grad(const KernelCall& call) {
  return [p = call.in[0].as<float>(), l = call.in[1].as<float>(), n = call.in[0].size(), dp = call.out[0].as<float>(),
          of_loss = static_cast<float>(call.attrs.number("scale", 1.0)), f = Loss(call.attrs), scalars = call.scalars] {
    const float scale = of_loss * scalars->loss_scale;
    for (int64_t i = 0; i < n; ++i) dp[i] = scale * f.template slope<PairLossMaths>(p[i], l[i]);
  };
}

template <class Loss>
CpuKernel prepare_with_grad(const KernelCall& call) {
  return cpu::loss_with_grad(call, prepare_pair_loss<Loss>, prepare_pair_loss_grad<Loss>);
}

}  // namespace

extern const CpuKernels pair_loss_cpu = {{"mae", prepare_pair_loss<Mae>},
                                         {"mae_grad", prepare_pair_loss_grad<Mae>},
                                         {"mae_with_grad", prepare_with_grad<Mae>},
                                         {"mse", prepare_pair_loss<Mse>},
                                         {"mse_grad", prepare_pair_loss_grad<Mse>},
                                         {"mse_with_grad", prepare_with_grad<Mse>},
                                         {"smooth_l1", prepare_pair_loss<SmoothL1>},
                                         {"smooth_l1_grad", prepare_pair_loss_grad<SmoothL1>},
                                         {"smooth_l1_with_grad", prepare_with_grad<SmoothL1>},
                                         {"binary_cross_entropy", prepare_pair_loss<BinaryCrossEntropy>},
                                         {"binary_cross_entropy_grad", prepare_pair_loss_grad<BinaryCrossEntropy>},
                                         {"binary_cross_entropy_with_grad", prepare_with_grad<BinaryCrossEntropy>},
                                         {"huber", prepare_pair_loss<Huber>},
                                         {"huber_grad", prepare_pair_loss_grad<Huber>},
                                         {"huber_with_grad", prepare_with_grad<Huber>},
                                         {"quantile", prepare_pair_loss<Quantile>},
                                         {"quantile_grad", prepare_pair_loss_grad<Quantile>},
                                         {"quantile_with_grad", prepare_with_grad<Quantile>},
                                         {"log_cosh", prepare_pair_loss<LogCosh>},
                                         {"log_cosh_grad", prepare_pair_loss_grad<LogCosh>},
                                         {"log_cosh_with_grad", prepare_with_grad<LogCosh>},
                                         {"poisson", prepare_pair_loss<Poisson>},
                                         {"poisson_grad", prepare_pair_loss_grad<Poisson>},
                                         {"poisson_with_grad", prepare_with_grad<Poisson>},
                                         {"focal", prepare_pair_loss<Focal>},
                                         {"focal_grad", prepare_pair_loss_grad<Focal>},
                                         {"focal_with_grad", prepare_with_grad<Focal>},
                                         {"kl_div", prepare_pair_loss<KlDiv>},
                                         {"kl_div_grad", prepare_pair_loss_grad<KlDiv>},
                                         {"kl_div_with_grad", prepare_with_grad<KlDiv>},
                                         {"hinge", prepare_pair_loss<Hinge>},
                                         {"hinge_grad", prepare_pair_loss_grad<Hinge>},
                                         {"hinge_with_grad", prepare_with_grad<Hinge>},
                                         {"cosine_embedding", prepare_pair_loss<CosineEmbedding>},
                                         {"cosine_embedding_grad", prepare_pair_loss_grad<CosineEmbedding>},
                                         {"cosine_embedding_with_grad", prepare_with_grad<CosineEmbedding>},
                                         {"mean_value", prepare_pair_loss<MeanValue>},
                                         {"mean_value_grad", prepare_pair_loss_grad<MeanValue>},
                                         {"mean_value_with_grad", prepare_with_grad<MeanValue>}};

}  // namespace trainctl
