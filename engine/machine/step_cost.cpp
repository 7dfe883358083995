// Fits the time of a step in addition to that of its separately measured kernels to measured steps.
#include <algorithm>
#include <array>
#include <cmath>

#include "engine/machine/machine.h"

namespace trainctl {
namespace {

constexpr size_t kUnknowns = 4;
using StepCostRow = std::array<double, kUnknowns>;

/// Solves a linear system by Gaussian elimination. The matrix is positive definite, so no pivot is 0.
StepCostRow solve(std::array<StepCostRow, kUnknowns> matrix, StepCostRow right) {
  for (size_t p = 0; p < kUnknowns; ++p)
    for (size_t q = p + 1; q < kUnknowns; ++q) {
      const double times = matrix[q][p] / matrix[p][p];
      for (size_t c = p; c < kUnknowns; ++c) matrix[q][c] -= times * matrix[p][c];
      right[q] -= times * right[p];
    }
  StepCostRow x = {};
  for (size_t p = kUnknowns; p-- > 0;) {
    double sum = right[p];
    for (size_t c = p + 1; c < kUnknowns; ++c) sum -= matrix[p][c] * x[c];
    x[p] = sum / matrix[p][p];
  }
  return x;
}

}  // namespace

Seconds StepCost::seconds(const StepSample& step) const {
  return product_stretch * step.products + other_stretch * (step.alone - step.products) + step.kernels * gap + host;
}

Seconds StepCost::of_kernel(Seconds alone, bool is_product, bool starts) const {
  constexpr double kLeast = 0.5;
  const Seconds stretched = (is_product ? product_stretch : other_stretch) * alone;
  return starts ? std::max(stretched + gap, kLeast * stretched) : stretched;
}

// The unknowns are both stretches minus 1, gap and host. Least squares with a prior: a sample is assumed to be exact to
// 1 %, and the unknowns to be 0 with standard deviations of 10 %, 1 us and 50 us. If the host time comes out negative,
// it is set to 0 and the others are fitted again.
StepCost step_cost(const std::vector<StepSample>& samples) {
  constexpr double kExact = 0.01;
  constexpr StepCostRow kPrior = {0.1, 0.1, 1e-6, 50e-6};
  constexpr size_t kGap = 2, kHost = 3;
  size_t used = kUnknowns;
  StepCostRow x = {};
  for (; used >= kHost; --used) {
    std::array<StepCostRow, kUnknowns> matrix = {};
    StepCostRow right = {};
    for (size_t i = 0; i < kUnknowns; ++i) matrix[i][i] = 1;
    for (const StepSample& sample : samples) {
      StepCostRow row = {sample.products.value, (sample.alone - sample.products).value,
                         static_cast<double>(sample.kernels), 1};
      for (size_t i = 0; i < kUnknowns; ++i)
        row[i] = i < used ? row[i] * kPrior[i] / (kExact * sample.measured.value) : 0;
      const double residual = (sample.measured - sample.alone).value / (kExact * sample.measured.value);
      for (size_t i = 0; i < kUnknowns; ++i) {
        for (size_t j = 0; j < kUnknowns; ++j) matrix[i][j] += row[i] * row[j];
        right[i] += row[i] * residual;
      }
    }
    x = solve(matrix, right);
    for (size_t i = 0; i < kUnknowns; ++i) x[i] *= kPrior[i];
    if (x[kHost] >= 0) break;
  }
  StepCost cost{.product_stretch = std::max(1 + x[0], 0.1),
                .other_stretch = std::max(1 + x[1], 0.1),
                .gap = {x[kGap]},
                .host = {std::max(x[kHost], 0.0)}};
  double squares = 0;
  for (const StepSample& sample : samples) {
    const double error = std::log(cost.seconds(sample) / sample.measured);
    squares += error * error;
  }
  // The fit explains a single sample completely, so one more with an error of kUnseen is assumed. kClocks is the error
  // that more samples do not reduce: other steps, and other cards of the same model, run at other clock rates.
  constexpr double kUnseen = 0.03, kClocks = 0.02;
  if (!samples.empty())
    cost.error = std::hypot(std::sqrt((squares + kUnseen * kUnseen) / static_cast<double>(samples.size())), kClocks);
  return cost;
}

}  // namespace trainctl
