// loss = scale * sum over rows of log(sum_c e^x[c]) - x[label].  dx = scale * (softmax(x) - onehot(label)).
#include <algorithm>
#include <cmath>
#include <string>

#include "engine/base/error.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/softmax/exponentials_cpu.h"

namespace trainctl {
namespace {

int64_t class_of(int32_t label, int64_t classes) {
  if (label < 0 || label >= classes) {
    throw EnvError("softmax_cross_entropy: the data has label " + std::to_string(label) +
                   ", but the logits have the classes 0 to " + std::to_string(classes - 1) +
                   "\n  widen the last layer, or look at the labels");
  }
  return label;
}

struct Rows {
  int64_t count, classes;
};

Rows rows_of(const TensorArg& logits) {
  const int64_t classes = logits.shape.back();
  return {classes == 0 ? 0 : logits.size() / classes, classes};
}

/// Writes a row's gradient, which may overwrite the row; returns the row's loss, unscaled.
double write_grad(const float* x, int64_t classes, int32_t label, double scale, float* dx) {
  const float top = cpu::largest(x, classes);
  const float correct = x[class_of(label, classes)];
  for (int64_t i = 0; i < classes; ++i) dx[i] = cpu::exp(x[i] - top);
  const double sum = cpu::sum(classes, [dx](int64_t i) { return double{dx[i]}; });
  const auto share = static_cast<float>(scale / sum);
  for (int64_t i = 0; i < classes; ++i) dx[i] *= share;
  dx[label] = static_cast<float>(scale * (std::exp(double{correct} - top) / sum - 1.0));
  return std::log(sum) + (double{top} - correct);  // in this order: a top far from 0 would absorb log(sum)
}

CpuKernel prepare_softmax_cross_entropy(const KernelCall& call) {
  return [rows = rows_of(call.in[0]), logits = call.in[0].as<float>(), labels = call.in[1].as<int32_t>(),
          loss = call.out[0].as<float>(), add = call.out[0].accumulate, scale = call.attrs.number("scale", 1.0)] {
    double total = 0;
    for (int64_t r = 0; r < rows.count; ++r) {
      const float* x = logits + r * rows.classes;
      const float top = cpu::largest(x, rows.classes);
      const double sum = cpu::sum(rows.classes, [=](int64_t i) { return double{cpu::exp(x[i] - top)}; });
      total += std::log(sum) + (double{top} - x[class_of(labels[r], rows.classes)]);
    }
    *loss = static_cast<float>((add ? *loss : 0.0) + scale * total);
  };
}

CpuKernel prepare_softmax_cross_entropy_grad(const KernelCall& call) {
  return [rows = rows_of(call.in[0]), logits = call.in[0].as<float>(), labels = call.in[1].as<int32_t>(),
          dlogits = call.out[0].as<float>(), scale = call.attrs.number("scale", 1.0)] {
    for (int64_t r = 0; r < rows.count; ++r) {
      write_grad(logits + r * rows.classes, rows.classes, labels[r], scale, dlogits + r * rows.classes);
    }
  };
}

CpuKernel prepare_softmax_cross_entropy_with_grad(const KernelCall& call) {
  return [rows = rows_of(call.in[0]), logits = call.in[0].as<float>(), labels = call.in[1].as<int32_t>(),
          loss = call.out[0].as<float>(), add = call.out[0].accumulate, dlogits = call.out[1].as<float>(),
          scale = call.attrs.number("scale", 1.0)] {
    double total = 0;
    for (int64_t r = 0; r < rows.count; ++r) {
      total += write_grad(logits + r * rows.classes, rows.classes, labels[r], scale, dlogits + r * rows.classes);
    }
    *loss = static_cast<float>((add ? *loss : 0.0) + scale * total);
  };
}

// Of a part of the classes, `offset` and on.

/// The statistics of row `row` of all parts, stats [parts, rows, 3]: the exponentials of the classes other than the
/// label's, and the label's logit.
struct RowOfParts {
  cpu::Exponentials others;
  float correct = -INFINITY;

  static RowOfParts of(const TensorArg& stats, int64_t row) {
    const int64_t parts = stats.shape[0], rows = stats.size() / (3 * parts);
    RowOfParts all{cpu::exponentials_of_parts(stats.as<float>(), parts, rows, 3, row)};
    for (int64_t p = 0; p < parts; ++p) {
      const float of_part = stats.as<float>()[(p * rows + row) * 3 + 2];
      if (of_part != -INFINITY) all.correct = of_part;
    }
    return all;
  }
  float top() const { return std::max(others.top, correct); }
  double power_of_label() const { return std::exp(double{correct} - top()); }
  double sum_of_others() const { return others.scaled_to(top()); }
  cpu::Exponentials all() const { return {top(), sum_of_others() + power_of_label()}; }
  /// log1p: a likely label's loss would lose its digits in the sum.
  double loss() const {
    if (correct < others.top) return std::log(all().sum) + (double{others.top} - correct);
    return std::log1p(sum_of_others() / power_of_label());
  }
};

CpuKernel prepare_softmax_cross_entropy_stats(const KernelCall& call) {
  return [rows = rows_of(call.in[0]), logits = call.in[0].as<float>(), labels = call.in[1].as<int32_t>(),
          offset = call.in[0].offset.back(), classes = call.in[0].global_shape.back(),
          stats = call.out[0].as<float>()] {
    for (int64_t r = 0; r < rows.count; ++r) {
      const float* x = logits + r * rows.classes;
      const int64_t label = class_of(labels[r], classes) - offset, n = rows.classes;
      const bool here = label >= 0 && label < n;
      const auto others = here ? cpu::Exponentials::of(x, label) + cpu::Exponentials::of(x + label + 1, n - label - 1)
                               : cpu::Exponentials::of(x, n);
      stats[3 * r] = others.top;
      stats[3 * r + 1] = static_cast<float>(others.sum);
      stats[3 * r + 2] = here ? x[label] : -INFINITY;
    }
  };
}

CpuKernel prepare_softmax_cross_entropy_apply(const KernelCall& call) {
  return [count = rows_of(call.in[0]).count, stats = call.in[2], loss = call.out[0].as<float>(),
          add = call.out[0].accumulate, scale = call.attrs.number("scale", 1.0)] {
    double total = 0;
    for (int64_t r = 0; r < count; ++r) total += RowOfParts::of(stats, r).loss();
    *loss = static_cast<float>((add ? *loss : 0.0) + scale * total);
  };
}

CpuKernel prepare_softmax_cross_entropy_grad_apply(const KernelCall& call) {
  return [rows = rows_of(call.in[0]), logits = call.in[0].as<float>(), labels = call.in[1].as<int32_t>(),
          offset = call.in[0].offset.back(), stats = call.in[2], dlogits = call.out[0].as<float>(),
          scale = call.attrs.number("scale", 1.0)] {
    for (int64_t r = 0; r < rows.count; ++r) {
      const float* x = logits + r * rows.classes;
      float* dx = dlogits + r * rows.classes;
      const RowOfParts row = RowOfParts::of(stats, r);
      const float top = row.top();
      const double reciprocal = row.all().reciprocal();
      const auto share = static_cast<float>(scale * reciprocal);
      const int64_t label = labels[r] - offset;
      for (int64_t i = 0; i < rows.classes; ++i) dx[i] = cpu::exp(x[i] - top) * share;
      if (label >= 0 && label < rows.classes) {
        dx[label] = static_cast<float>(-scale * row.sum_of_others() * reciprocal);
      }
    }
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
