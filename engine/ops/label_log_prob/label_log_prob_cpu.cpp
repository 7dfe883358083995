// y = x[label] - log sum_c e^x[c], summed in double.  dx = dy * ((c == label) - softmax(x)).
#include <algorithm>
#include <cmath>

#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

struct LabelRows {
  const float* logits;
  const int32_t* labels;
  int64_t rows, classes;

  explicit LabelRows(const KernelCall& call)
      : logits(call.in[0].as<float>()),
        labels(call.in[1].as<int32_t>()),
        rows(call.in[1].size()),
        classes(call.in[0].shape.back()) {}

  const float* row(int64_t r) const { return logits + r * classes; }
};

CpuKernel prepare_label_log_prob(const KernelCall& call) {
  return [of = LabelRows(call), y = call.out[0].as<float>()] {
    for (int64_t r = 0; r < of.rows; ++r) {
      const int32_t label = of.labels[r];
      y[r] = 0;
      if (label < 0) continue;
      const float* x = of.row(r);
      const float top = cpu::largest(x, of.classes);
      const double sum = cpu::sum(of.classes, [=](int64_t c) { return double{cpu::exp(x[c] - top)}; });
      y[r] = static_cast<float>(double{x[label]} - top - std::log(sum));
    }
  };
}

CpuKernel prepare_label_log_prob_grad(const KernelCall& call) {
  return [of = LabelRows(call), dy = call.in[2].as<float>(), dlogits = call.out[0].as<float>()] {
    for (int64_t r = 0; r < of.rows; ++r) {
      const int32_t label = of.labels[r];
      float* dx = dlogits + r * of.classes;
      if (label < 0) {
        std::fill_n(dx, of.classes, 0.0f);
        continue;
      }
      const float* x = of.row(r);
      const float top = cpu::largest(x, of.classes);
      for (int64_t c = 0; c < of.classes; ++c) dx[c] = cpu::exp(x[c] - top);
      const double sum = cpu::sum(of.classes, [dx](int64_t c) { return double{dx[c]}; });
      for (int64_t c = 0; c < of.classes; ++c)
        dx[c] = static_cast<float>(double{dy[r]} * ((c == label ? 1.0 : 0.0) - double{dx[c]} / sum));
    }
  };
}

}  // namespace

extern const CpuKernels label_log_prob_cpu = {{"label_log_prob", prepare_label_log_prob},
                                              {"label_log_prob_grad", prepare_label_log_prob_grad}};

}  // namespace trainctl
