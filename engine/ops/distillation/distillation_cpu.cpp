// The loss of distillation and its gradient, row by row (distillation.cpp has the formulas). With p = softmax(teacher /
// T), q = softmax(x / T) and s = softmax(x):
//   dx_c = scale * ((1 - a) * (s_c - (c == label)) + a * T * (q_c - sum of the p_j with id_j == c))
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/softmax_cross_entropy/targets.h"

namespace trainctl {
namespace {

class Distillation {
 public:
  explicit Distillation(const KernelCall& call)
      : logits_(call.in[0].as<float>()),
        labels_(call.in[1].as<int32_t>()),
        teacher_(call.in[2].as<float>()),
        ids_(call.in.size() > 3 ? call.in[3].as<int32_t>() : nullptr),
        rows_(call.in[1].size()),
        classes_(call.in[0].shape.back()),
        k_(call.in[2].shape.back()),
        targets_(Targets::of(call.attrs)),
        scalars_(call.scalars),
        of_all_(call.attrs.number("scale", 1.0)),
        temperature_(call.attrs.number("temperature", 1.0)),
        alpha_(call.attrs.number("alpha", 1.0)),
        shares_(std::make_shared<std::vector<double>>(static_cast<size_t>(k_))) {}

  double scale() const { return of_all_ * double{targets_.weight(scalars_)}; }

  /// The sum of all rows' losses, unscaled; `dx`: null, or the gradient, which may be the logits' memory.
  double run(float* dx) const {
    double total = 0;
    for (int64_t r = 0; r < rows_; ++r) total += row(r, dx == nullptr ? nullptr : dx + r * classes_);
    return total;
  }

 private:
  double row(int64_t r, float* dx) const {
    const int32_t label = labels_[r];
    if (!targets_.counts(label)) {
      if (dx != nullptr) std::fill_n(dx, classes_, 0.0f);
      return 0;
    }
    if (label < 0 || label >= classes_) wrong("label", label);
    const float* const x = logits_ + r * classes_;
    const float top = cpu::largest(x, classes_);
    const auto warm = static_cast<float>(1 / temperature_);
    const double sum = cpu::sum(classes_, [=](int64_t c) { return double{cpu::exp(x[c] - top)}; });
    const double warm_sum = cpu::sum(classes_, [=](int64_t c) { return double{cpu::exp((x[c] - top) * warm)}; });
    const double divergence = compare(r, x, top, warm_sum);
    const double loss =
        (1 - alpha_) * (std::log(sum) + (double{top} - x[label])) + alpha_ * temperature_ * temperature_ * divergence;
    if (dx == nullptr) return loss;
    const double scaled = scale() * double{scalars_->loss_scale};
    const double of_label = scaled * (1 - alpha_), of_teacher = scaled * alpha_ * temperature_;
    const auto cool = static_cast<float>(of_label / sum), warmed = static_cast<float>(of_teacher / warm_sum);
    for (int64_t c = 0; c < classes_; ++c) dx[c] = cool * cpu::exp(x[c] - top) + warmed * cpu::exp((x[c] - top) * warm);
    dx[label] -= static_cast<float>(of_label);
    for (int64_t j = 0; j < k_; ++j)
      dx[ids_ == nullptr ? j : ids_[r * k_ + j]] -= static_cast<float>(of_teacher * (*shares_)[static_cast<size_t>(j)]);
    return loss;
  }

  /// Fills in shares_ for row r, and returns the divergence between the teacher's distribution and that of the row.
  double compare(int64_t r, const float* x, float top, double warm_sum) const {
    const float* const t = teacher_ + r * k_;
    const float teacher_top = cpu::largest(t, k_);
    double teacher_sum = 0, divergence = 0;
    for (int64_t j = 0; j < k_; ++j) {
      const double share = std::exp((double{t[j]} - teacher_top) / temperature_);
      (*shares_)[static_cast<size_t>(j)] = share;
      teacher_sum += share;
    }
    for (int64_t j = 0; j < k_; ++j) {
      const int64_t c = ids_ == nullptr ? j : ids_[r * k_ + j];
      if (c < 0 || c >= classes_) wrong("teacher_ids", c);
      double& share = (*shares_)[static_cast<size_t>(j)];
      share /= teacher_sum;
      const double log_p = (double{t[j]} - teacher_top) / temperature_ - std::log(teacher_sum);
      const double log_q = (double{x[c]} - top) / temperature_ - std::log(warm_sum);
      if (share > 0) divergence += share * (log_p - log_q);
    }
    return divergence;
  }

  [[noreturn]] void wrong(const char* what, int64_t value) const {
    throw EnvError("distillation: the data contains " + std::string(what) + " " + std::to_string(value) +
                   ", but the logits have classes 0 to " + std::to_string(classes_ - 1));
  }

  const float* logits_;
  const int32_t* labels_;
  const float* teacher_;
  const int32_t* ids_;  ///< null: the teacher has all classes
  int64_t rows_, classes_, k_;
  Targets targets_;
  const StepScalars* scalars_;
  double of_all_, temperature_, alpha_;
  std::shared_ptr<std::vector<double>> shares_;  ///< the teacher's probabilities of a row
};

CpuKernel prepare_distillation(const KernelCall& call) {
  return [of = Distillation(call), loss = call.out[0].as<float>(), add = call.out[0].accumulate] {
    *loss = static_cast<float>((add ? *loss : 0.0) + of.scale() * of.run(nullptr));
  };
}

CpuKernel prepare_distillation_grad(const KernelCall& call) {
  return [of = Distillation(call), dx = call.out[0].as<float>()] { of.run(dx); };
}

CpuKernel prepare_distillation_with_grad(const KernelCall& call) {
  return [of = Distillation(call), loss = call.out[0].as<float>(), add = call.out[0].accumulate,
          dx = call.out[1].as<float>()] { *loss = static_cast<float>((add ? *loss : 0.0) + of.scale() * of.run(dx)); };
}

}  // namespace

extern const CpuKernels distillation_cpu = {{"distillation", prepare_distillation},
                                            {"distillation_grad", prepare_distillation_grad},
                                            {"distillation_with_grad", prepare_distillation_with_grad}};

}  // namespace trainctl
