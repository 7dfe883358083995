// The loss of a row and its gradient, by the recursions of ctc_lattice.h; rows are split over threads.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "engine/base/error.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/cpu/scratch_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/ctc/ctc_lattice.h"

namespace trainctl {
namespace {

[[noreturn]] void wrong_ctc_data(const std::string& what, const std::string& expected) {
  throw EnvError("ctc: " + what + "\n  " + expected);
}

/// A row of the batch and the memory of one thread.
class CtcRow {
 public:
  /// The number of doubles that one thread needs.
  static int64_t memory(const CtcCall& c) { return c.most_states() * (c.steps + 3) + c.steps + c.classes; }

  CtcRow(const CtcCall& c, const float* logits, int64_t row, double* memory)
      : c_(c),
        x_(logits + row * c.steps * c.classes),
        labels_(c.labels + row * c.most),
        steps_(c.steps_of(row)),
        count_(c.labels_of(row)),
        states_(2 * count_ + 1),
        alpha_(memory),
        beta_(alpha_ + c.most_states() * c.steps),
        log_sums_(beta_ + 3 * c.most_states()),
        shares_(log_sums_ + c.steps) {
    check_row(row);
  }

  /// Computes alpha for all steps. Returns -log p of the labels, or infinity if no path emits them.
  double forwards() const {
    for (int64_t t = 0; t < steps_; ++t) {
      const float* x = x_ + t * c_.classes;
      const float top = cpu::largest(x, c_.classes);
      log_sums_[t] = top + std::log(cpu::sum(c_.classes, [=](int64_t k) { return double{cpu::exp(x[k] - top)}; }));
      double* const alpha = alpha_ + t * states_;
      for (int64_t s = 0; s < states_; ++s) {
        const double before = t > 0 ? c_.arriving(labels_, alpha - states_, s) : s < 2 ? 0.0 : -INFINITY;
        alpha[s] = before + log_probability(t, s);
      }
    }
    if (steps_ == 0) return count_ == 0 ? 0.0 : INFINITY;
    const double* last = alpha_ + (steps_ - 1) * states_;
    return -(count_ > 0 ? ctc_log_add(last[states_ - 1], last[states_ - 2]) : last[0]);
  }

  int64_t count() const { return count_; }

  /// Computes dx = slope * (softmax - share of the paths). Must follow forwards(), whose result is `loss`.
  void backwards(double loss, double slope, float* dx) const {
    std::fill(dx + steps_ * c_.classes, dx + c_.steps * c_.classes, 0.0f);
    double *const beta = beta_, *const after = beta_ + c_.most_states(), *const shares = shares_;
    for (int64_t t = steps_ - 1; t >= 0; --t) {
      for (int64_t s = 0; s < states_; ++s) {
        if (t == steps_ - 1)
          beta[s] = s + 2 >= states_ ? 0.0 : -INFINITY;
        else
          beta[s] = c_.leaving(labels_, after, s, states_);
      }
      std::fill_n(shares, c_.classes, 0.0);
      for (int64_t s = 0; s < states_; ++s) {
        shares[c_.class_of(labels_, s)] += std::exp(alpha_[t * states_ + s] + beta[s] + loss);
        after[s] = beta[s] + log_probability(t, s);
      }
      const float* x = x_ + t * c_.classes;
      for (int64_t k = 0; k < c_.classes; ++k)
        dx[t * c_.classes + k] = static_cast<float>(slope * (std::exp(double{x[k]} - log_sums_[t]) - shares[k]));
    }
  }

 private:
  double log_probability(int64_t t, int64_t state) const {
    return double{x_[t * c_.classes + c_.class_of(labels_, state)]} - log_sums_[t];
  }

  void check_row(int64_t row) const {
    const auto of_row = [row] { return " of row " + std::to_string(row) + " of the micro-batch"; };
    if (steps_ < 0 || steps_ > c_.steps)
      wrong_ctc_data(
          "the input length " + std::to_string(steps_) + of_row() + " is not between 0 and " + std::to_string(c_.steps),
          "input_lengths are the steps of the prediction that count");
    if (count_ < 0 || count_ > c_.most)
      wrong_ctc_data(
          "the label length " + std::to_string(count_) + of_row() + " is not between 0 and " + std::to_string(c_.most),
          "label_lengths are the labels of each sample that count");
    for (int64_t i = 0; i < count_; ++i)
      if (!c_.is_class(labels_[i]))
        wrong_ctc_data("the label " + std::to_string(labels_[i]) + of_row() + " is not a class",
                       "labels are 0 to " + std::to_string(c_.classes - 1) + ", except the blank, " +
                           std::to_string(c_.blank) + "; set label_lengths if there is padding");
  }

  const CtcCall& c_;
  const float* x_;
  const int32_t* labels_;
  int64_t steps_, count_, states_;
  double *alpha_, *beta_, *log_sums_, *shares_;
};

/// Calls f(row, its lattice) for all rows.
template <class F>
CpuKernel over_ctc_rows(const KernelCall& call, F f) {
  const CtcCall c = CtcCall::of(call);
  const auto parts = static_cast<int>(std::clamp<int64_t>(c.rows, 1, call.threads));
  const int64_t memory = CtcRow::memory(c);
  const std::shared_ptr<cpu::Scratch> scratch = cpu::scratch_of_this_thread();
  scratch->reserve(2 * memory * parts);
  return [=, logits = call.in[0].as<float>()] {
    // An error is reported by this thread: run_parts does not pass it on.
    for (int64_t row = 0; row < c.rows; ++row) CtcRow(c, logits, row, reinterpret_cast<double*>(scratch->data()));
    cpu::run_parts(parts, [&](int part) {
      double* const own = reinterpret_cast<double*>(scratch->data()) + part * memory;
      for (int64_t row = c.rows * part / parts; row < c.rows * (part + 1) / parts; ++row)
        f(c, row, CtcRow(c, logits, row, own));
    });
  };
}

CpuKernel prepare_ctc(const KernelCall& call) {
  return over_ctc_rows(call, [y = call.out[0].as<float>()](const CtcCall& c, int64_t row, const CtcRow& lattice) {
    const double loss = lattice.forwards();
    y[row] = std::isinf(loss) && c.zero_infinity ? 0.0f : static_cast<float>(loss * c.factor(lattice.count()));
  });
}

CpuKernel prepare_ctc_grad(const KernelCall& call) {
  return over_ctc_rows(call, [dy = call.in.back().as<float>(), dx = call.out[0].as<float>()](
                                 const CtcCall& c, int64_t row, const CtcRow& lattice) {
    const double loss = lattice.forwards();
    float* const to = dx + row * c.steps * c.classes;
    if (std::isinf(loss))
      std::fill_n(to, c.steps * c.classes, c.zero_infinity ? 0.0f : NAN);
    else
      lattice.backwards(loss, double{dy[row]} * c.factor(lattice.count()), to);
  });
}

}  // namespace

extern const CpuKernels ctc_cpu = {{"ctc", prepare_ctc}, {"ctc_grad", prepare_ctc_grad}};

}  // namespace trainctl
