// loss = scale * sum over rows of log(sum_c e^x[c]) - x[label].  dx = scale * (softmax(x) - onehot(label)). For
// label smoothing and ignored labels, see targets.h.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/ops/cpu/block_sums_cpu.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/softmax/exponentials_cpu.h"
#include "engine/ops/softmax_cross_entropy/targets.h"

namespace trainctl {
namespace {

void check_label(int32_t label, int64_t classes) {
  if (label < 0 || label >= classes) {
    throw EnvError("softmax_cross_entropy: the data contains label " + std::to_string(label) +
                   ", but the logits have classes 0 to " + std::to_string(classes - 1) +
                   "\n  increase the units of the last layer, or check the labels");
  }
}

/// Tells which rows count, and the factor of a row's loss, which may change from step to step.
struct Mean {
  Targets targets;
  double of_all;
  const StepScalars* scalars;

  explicit Mean(const KernelCall& call)
      : targets(Targets::of(call.attrs)), of_all(call.attrs.number("scale", 1.0)), scalars(call.scalars) {}
  double scale() const { return of_all * double{targets.weight(scalars)}; }
  double scale_of_grad() const { return scale() * double{scalars->loss_scale}; }
};

constexpr int64_t kLossRows = 16;  ///< rows per block
/// Up to this many, the loops are vectorized over rows, since the classes do not fill a vector.
constexpr int64_t kFewClasses = 8;

/// Loops over the rows of the logits on several threads, with sums that do not depend on the number of threads.
class LogitRows {
 public:
  explicit LogitRows(const KernelCall& call)
      : count(call.in[0].shape.back() == 0 ? 0 : call.in[0].size() / call.in[0].shape.back()),
        classes(call.in[0].shape.back()),
        threads_(call.threads),
        sums_(call.threads, count, kLossRows, classes) {}

  /// The sum of f(first row, rows) over blocks of up to kLossRows rows. f must not throw.
  template <class F>
  double sum_blocks(const F& f) {
    return sums_.run(f);
  }

  /// The sum of f(row) over all rows. f must not throw.
  template <class F>
  double sum(const F& f) {
    return sums_.run([&](int64_t first, int64_t rows) {
      double total = 0;
      for (int64_t r = first; r < first + rows; ++r) total += f(r);
      return total;
    });
  }

  /// Calls f(row) for all rows. f must not throw.
  template <class F>
  void each(const F& f) const {
    cpu::each_row(threads_, count, classes, f);
  }

  int64_t count, classes;

 private:
  int threads_;
  cpu::BlockSums sums_;
};

/// Throws if the label of a row that counts is not a class.
void check_labels(const int32_t* labels, const LogitRows& rows, int64_t classes, const Targets& targets) {
  for (int64_t r = 0; r < rows.count; ++r)
    if (targets.counts(labels[r])) check_label(labels[r], classes);
}

/// The term that label_smoothing e adds to a row's loss: e (x[label] - mean of x).
double smoothed(const float* x, int64_t classes, int32_t label, const Targets& targets) {
  if (targets.smoothing == 0) return 0;
  const double mean = cpu::sum(classes, [x](int64_t i) { return double{x[i]}; }) / static_cast<double>(classes);
  return double{targets.smoothing} * (x[label] - mean);
}

/// Writes a row's gradient, which may overwrite the row; returns the row's loss, unscaled.
double write_grad(const float* x, int64_t classes, int32_t label, double scale, const Targets& targets, float* dx) {
  if (!targets.counts(label)) {
    std::fill_n(dx, classes, 0.0f);
    return 0;
  }
  const double of_smoothing = smoothed(x, classes, label, targets);
  const float top = cpu::largest(x, classes);
  const float correct = x[label];
  for (int64_t i = 0; i < classes; ++i) dx[i] = cpu::exp(x[i] - top);
  const double sum = cpu::sum(classes, [dx](int64_t i) { return double{dx[i]}; });
  const auto share = static_cast<float>(scale / sum);
  for (int64_t i = 0; i < classes; ++i) dx[i] *= share;
  dx[label] = static_cast<float>(scale * (std::exp(double{correct} - top) / sum - 1.0 + double{targets.smoothing}));
  if (targets.smoothing != 0) {
    const auto of_each = static_cast<float>(scale * targets.smoothing / static_cast<double>(classes));
    for (int64_t i = 0; i < classes; ++i) dx[i] -= of_each;
  }
  return of_smoothing + std::log(sum) +
         (double{top} - correct);  // in this order: a top far from 0 would absorb log(sum)
}

/// write_grad for up to kLossRows rows of up to kFewClasses classes, in lanes, without label smoothing. Returns the sum
/// of their losses.
double write_grads_in_lanes(const float* x, int64_t classes, const int32_t* labels, int64_t rows, double scale,
                            const Targets& targets, float* dx) {
  float e[kFewClasses][kLossRows] = {}, top[kLossRows], correct[kLossRows];
  double sum[kLossRows] = {}, share[kLossRows];
  for (int64_t r = 0; r < rows; ++r) {
    correct[r] = x[r * classes + (targets.counts(labels[r]) ? labels[r] : 0)];
    for (int64_t c = 0; c < classes; ++c) e[c][r] = x[r * classes + c];
  }
  std::copy_n(e[0], kLossRows, top);
  for (int64_t c = 1; c < classes; ++c)
    for (int64_t r = 0; r < kLossRows; ++r) top[r] = cpu::at_least(e[c][r], top[r]);
  for (int64_t c = 0; c < classes; ++c)
    for (int64_t r = 0; r < kLossRows; ++r) sum[r] += e[c][r] = cpu::exp(e[c][r] - top[r]);
  for (int64_t r = 0; r < kLossRows; ++r) share[r] = scale / sum[r];
  double total = 0;
  for (int64_t r = 0; r < rows; ++r) {
    float* const to = dx + r * classes;
    if (!targets.counts(labels[r])) {
      std::fill_n(to, classes, 0.0f);
      continue;
    }
    for (int64_t c = 0; c < classes; ++c) to[c] = e[c][r] * static_cast<float>(share[r]);
    // Subtracting 1 from the label's probability would lose digits, so exponentials are subtracted in double.
    to[labels[r]] = static_cast<float>(-share[r] * (sum[r] - double{e[labels[r]][r]}));
    total += std::log(sum[r]) + (double{top[r]} - correct[r]);
  }
  return total;
}

/// The gradient of rows [first, first + count); returns the sum of their losses, unscaled.
double write_grads(const float* logits, const int32_t* labels, int64_t classes, int64_t first, int64_t count,
                   double scale, const Targets& targets, float* dlogits) {
  const float* const x = logits + first * classes;
  float* const dx = dlogits + first * classes;
  if (classes <= kFewClasses && targets.smoothing == 0)
    return write_grads_in_lanes(x, classes, labels + first, count, scale, targets, dx);
  double total = 0;
  for (int64_t r = 0; r < count; ++r)
    total += write_grad(x + r * classes, classes, labels[first + r], scale, targets, dx + r * classes);
  return total;
}

CpuKernel prepare_softmax_cross_entropy(const KernelCall& call) {
  return [rows = LogitRows(call), logits = call.in[0].as<float>(), labels = call.in[1].as<int32_t>(),
          loss = call.out[0].as<float>(), add = call.out[0].accumulate, mean = Mean(call)]() mutable {
    check_labels(labels, rows, rows.classes, mean.targets);
    const double total = rows.sum([&](int64_t r) {
      if (!mean.targets.counts(labels[r])) return 0.0;
      const float* x = logits + r * rows.classes;
      const float top = cpu::largest(x, rows.classes);
      const double sum = cpu::sum(rows.classes, [=](int64_t i) { return double{cpu::exp(x[i] - top)}; });
      return std::log(sum) + (double{top} - x[labels[r]]) + smoothed(x, rows.classes, labels[r], mean.targets);
    });
    *loss = static_cast<float>((add ? *loss : 0.0) + mean.scale() * total);
  };
}

CpuKernel prepare_softmax_cross_entropy_grad(const KernelCall& call) {
  return [rows = LogitRows(call), logits = call.in[0].as<float>(), labels = call.in[1].as<int32_t>(),
          dlogits = call.out[0].as<float>(), mean = Mean(call)]() mutable {
    check_labels(labels, rows, rows.classes, mean.targets);
    const double scale = mean.scale_of_grad();
    rows.sum_blocks([&](int64_t first, int64_t count) {
      return write_grads(logits, labels, rows.classes, first, count, scale, mean.targets, dlogits);
    });
  };
}

CpuKernel prepare_softmax_cross_entropy_with_grad(const KernelCall& call) {
  return [rows = LogitRows(call), logits = call.in[0].as<float>(), labels = call.in[1].as<int32_t>(),
          loss = call.out[0].as<float>(), add = call.out[0].accumulate, dlogits = call.out[1].as<float>(),
          mean = Mean(call)]() mutable {
    check_labels(labels, rows, rows.classes, mean.targets);
    const double scale = mean.scale_of_grad();
    const double total = rows.sum_blocks([&](int64_t first, int64_t count) {
      return write_grads(logits, labels, rows.classes, first, count, scale, mean.targets, dlogits);
    });
    *loss = static_cast<float>((add ? *loss : 0.0) + mean.scale() * total);
  };
}

// Kernels for a part of the classes.

/// The statistics of a row from all parts: stats [parts, rows, 3 or 4]. Each part has the largest logit of the classes
/// other than the label's, the sum of their exponentials relative to it, the logit of the label (-inf if it is in
/// another part), and with label smoothing the sum of its logits.
struct RowOfParts {
  cpu::Exponentials others;  ///< exponentials of the classes other than the label's
  float correct = -INFINITY;
  double mean = 0;  ///< mean of the logits; with label smoothing

  /// `n`: classes of a part.
  static RowOfParts of(const TensorArg& stats, int64_t row, int64_t n) {
    const int64_t parts = stats.shape[0], numbers = stats.shape.back(), rows = stats.size() / (numbers * parts);
    RowOfParts all{cpu::exponentials_of_parts(stats.as<float>(), parts, rows, numbers, row)};
    for (int64_t p = 0; p < parts; ++p) {
      const float* part = stats.as<float>() + (p * rows + row) * numbers;
      if (part[2] != -INFINITY) all.correct = part[2];
      if (numbers > 3) all.mean += double{part[3]} / static_cast<double>(parts * n);
    }
    return all;
  }
  float top() const { return std::max(others.top, correct); }
  double power_of_label() const { return std::exp(double{correct} - top()); }
  double sum_of_others() const { return others.scaled_to(top()); }
  cpu::Exponentials all() const { return {top(), sum_of_others() + power_of_label()}; }
  double loss(const Targets& targets) const {
    const double of_smoothing = targets.smoothing == 0 ? 0 : double{targets.smoothing} * (correct - mean);
    if (correct < others.top) return of_smoothing + std::log(all().sum) + (double{others.top} - correct);
    return of_smoothing + std::log1p(sum_of_others() / power_of_label());  // the log of the sum would lose digits
  }
};

CpuKernel prepare_softmax_cross_entropy_stats(const KernelCall& call) {
  return [rows = LogitRows(call), logits = call.in[0].as<float>(), labels = call.in[1].as<int32_t>(),
          offset = call.in[0].offset.back(), classes = call.in[0].global_shape.back(), stats = call.out[0].as<float>(),
          numbers = call.out[0].shape.back(), targets = Targets::of(call.attrs)] {
    check_labels(labels, rows, classes, targets);
    const int64_t n = rows.classes;
    rows.each([&](int64_t r) {
      const float* x = logits + r * n;
      float* to = stats + numbers * r;
      const int64_t label = targets.counts(labels[r]) ? labels[r] - offset : -1;
      const bool here = label >= 0 && label < n;
      const auto others = here ? cpu::Exponentials::of(x, label) + cpu::Exponentials::of(x + label + 1, n - label - 1)
                               : cpu::Exponentials::of(x, n);
      to[0] = others.top;
      to[1] = static_cast<float>(others.sum);
      to[2] = here ? x[label] : -INFINITY;
      if (numbers > 3) to[3] = static_cast<float>(cpu::sum(n, [x](int64_t i) { return double{x[i]}; }));
    });
  };
}

CpuKernel prepare_softmax_cross_entropy_apply(const KernelCall& call) {
  return [rows = LogitRows(call), labels = call.in[1].as<int32_t>(), stats = call.in[2], loss = call.out[0].as<float>(),
          add = call.out[0].accumulate, mean = Mean(call)] {
    double total = 0;
    for (int64_t r = 0; r < rows.count; ++r) {
      if (mean.targets.counts(labels[r])) total += RowOfParts::of(stats, r, rows.classes).loss(mean.targets);
    }
    *loss = static_cast<float>((add ? *loss : 0.0) + mean.scale() * total);
  };
}

CpuKernel prepare_softmax_cross_entropy_grad_apply(const KernelCall& call) {
  return [rows = LogitRows(call), logits = call.in[0].as<float>(), labels = call.in[1].as<int32_t>(),
          offset = call.in[0].offset.back(), stats = call.in[2], dlogits = call.out[0].as<float>(), mean = Mean(call)] {
    const double scale = mean.scale_of_grad(), of_smoothing = scale * mean.targets.smoothing;
    const double of_each = of_smoothing / static_cast<double>(rows.classes * stats.shape[0]);
    rows.each([&](int64_t r) {
      const float* x = logits + r * rows.classes;
      float* dx = dlogits + r * rows.classes;
      if (!mean.targets.counts(labels[r])) return void(std::fill_n(dx, rows.classes, 0.0f));
      const RowOfParts row = RowOfParts::of(stats, r, rows.classes);
      const float top = row.top(), each = static_cast<float>(of_each);
      const double reciprocal = row.all().reciprocal();
      const auto share = static_cast<float>(scale * reciprocal);
      const int64_t label = labels[r] - offset;
      for (int64_t i = 0; i < rows.classes; ++i) dx[i] = cpu::exp(x[i] - top) * share - each;
      if (label >= 0 && label < rows.classes) {
        dx[label] = static_cast<float>(of_smoothing - of_each - scale * row.sum_of_others() * reciprocal);
      }
    });
  };
}

}  // namespace

extern const CpuKernels softmax_cross_entropy_cpu = {
    {"softmax_cross_entropy", prepare_softmax_cross_entropy},
    {"softmax_cross_entropy_grad", prepare_softmax_cross_entropy_grad},
    {"softmax_cross_entropy_with_grad", prepare_softmax_cross_entropy_with_grad},
    {"softmax_cross_entropy_stats", prepare_softmax_cross_entropy_stats},
    {"softmax_cross_entropy_apply", prepare_softmax_cross_entropy_apply},
    {"softmax_cross_entropy_grad_apply", prepare_softmax_cross_entropy_grad_apply}};

}  // namespace trainctl
