// loss = scale * sum over rows of log(sum_c e^x[c]) - x[label].  dx = scale * (softmax(x) - onehot(label)).
#include <algorithm>
#include <cmath>
#include <string>

#include "engine/base/error.h"
#include "engine/ops/cpu/math_cpu.h"
#include "engine/ops/kernel.h"

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

}  // namespace

extern const CpuKernels softmax_cross_entropy_cpu = {
    {"softmax_cross_entropy", prepare_softmax_cross_entropy},
    {"softmax_cross_entropy_grad", prepare_softmax_cross_entropy_grad},
    {"softmax_cross_entropy_with_grad", prepare_softmax_cross_entropy_with_grad}};

}  // namespace trainctl
