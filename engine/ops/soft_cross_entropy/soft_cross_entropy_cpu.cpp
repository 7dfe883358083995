// loss = scale * sum over rows of sum_c t[c] * (log(sum_c e^x[c]) - x[c]), summed in double.
// dx = scale * (softmax(x) * sum_c t[c] - t).
#include <algorithm>
#include <cmath>

#include "engine/ops/cpu/loss_with_grad_cpu.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

/// The operands and attrs of a call.
struct SoftLoss {
  const float *logits, *labels;
  int64_t rows, classes;
  double scale, smoothing;
  bool skips;  ///< attr nan_is_no_label: rows whose label begins with NaN do not count

  explicit SoftLoss(const KernelCall& call)
      : logits(call.in[0].as<float>()),
        labels(call.in[1].as<float>()),
        rows(call.in[0].shape.back() == 0 ? 0 : call.in[0].size() / call.in[0].shape.back()),
        classes(call.in[0].shape.back()),
        scale(call.attrs.number("scale", 1.0)),
        smoothing(call.attrs.number("label_smoothing", 0)),
        skips(call.attrs.flag("nan_is_no_label")) {}

  const float* row(int64_t r) const { return logits + r * classes; }
  bool counts(int64_t r) const { return !skips || !std::isnan(labels[r * classes]); }
  double target(int64_t r, int64_t c) const {
    return (1 - smoothing) * double{labels[r * classes + c]} + smoothing / static_cast<double>(classes);
  }
  double sum_of_targets(int64_t r) const {
    return cpu::sum(classes, [this, r](int64_t c) { return target(r, c); });
  }
};

CpuKernel prepare_soft_cross_entropy(const KernelCall& call) {
  return [of = SoftLoss(call), loss = call.out[0].as<float>(), add = call.out[0].accumulate] {
    double total = 0;
    for (int64_t r = 0; r < of.rows; ++r) {
      if (!of.counts(r)) continue;
      const float* x = of.row(r);
      const float top = cpu::largest(x, of.classes);
      const double sum = cpu::sum(of.classes, [=](int64_t c) { return double{cpu::exp(x[c] - top)}; });
      // Computed relative to the largest logit: added to a large maximum, the log would be lost to rounding.
      const double below = cpu::sum(of.classes, [&](int64_t c) { return of.target(r, c) * (double{top} - x[c]); });
      total += of.sum_of_targets(r) * std::log(sum) + below;
    }
    *loss = static_cast<float>((add ? *loss : 0.0) + of.scale * total);
  };
}

CpuKernel prepare_soft_cross_entropy_grad(const KernelCall& call) {
  return [of = SoftLoss(call), dlogits = call.out[0].as<float>(), scalars = call.scalars] {
    const double scale = of.scale * double{scalars->loss_scale};
    for (int64_t r = 0; r < of.rows; ++r) {
      const float* x = of.row(r);
      float* dx = dlogits + r * of.classes;  // may be the row of logits
      if (!of.counts(r)) {
        std::fill_n(dx, of.classes, 0.0f);
        continue;
      }
      const float top = cpu::largest(x, of.classes);
      for (int64_t c = 0; c < of.classes; ++c) dx[c] = cpu::exp(x[c] - top);
      const double sum = cpu::sum(of.classes, [dx](int64_t c) { return double{dx[c]}; });
      const double share = of.sum_of_targets(r) / sum;
      for (int64_t c = 0; c < of.classes; ++c)
        dx[c] = static_cast<float>(scale * (double{dx[c]} * share - of.target(r, c)));
    }
  };
}

CpuKernel prepare_soft_cross_entropy_with_grad(const KernelCall& call) {
  return cpu::loss_with_grad(call, prepare_soft_cross_entropy, prepare_soft_cross_entropy_grad);
}

}  // namespace

extern const CpuKernels soft_cross_entropy_cpu = {
    {"soft_cross_entropy", prepare_soft_cross_entropy},
    {"soft_cross_entropy_grad", prepare_soft_cross_entropy_grad},
    {"soft_cross_entropy_with_grad", prepare_soft_cross_entropy_with_grad}};

}  // namespace trainctl
