// Central differences with steps h and h / 2, combined such that the error is of the order h^4 (Richardson). Kernels
// compute in f32, so an output is compared with itself element by element before the differences are added up.
#include "engine/ops/plugins/check/plugin_slopes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/ops/plugins/check/plugin_run.h"

namespace trainctl {
namespace {

constexpr double kStep = 0.03;
constexpr double kSlopeTolerance = 0.01;   // relative to the largest slope of the tensor
constexpr double kFactorTolerance = 5e-4;  // of a factor of the whole gradient, in which noise averages out
constexpr size_t kMostElements = 400, kLeastForFactor = 8;

struct Slope {
  double value = 0, left = 0, right = 0;
  double correction = 0;  ///< how far apart the differences with steps h and h / 2 are

  /// True if there is no kink nearby. `largest`: slope of the tensor.
  bool is_smooth(double largest) const {
    return std::fabs(left - right) < 0.05 * largest && correction < 0.005 * largest;
  }
};

class SlopesOfOperand {
 public:
  SlopesOfOperand(const PluginCase& built, const PluginValues& values, size_t operand,
                  const std::function<PluginValues(const PluginValues&)>& run_forward)
      : built_(built), values_(values), tensor_(built.forward.inputs[operand]), run_forward_(run_forward) {
    middle_ = run_forward_(values_);
  }

  Slope at(size_t element) {
    const double x = values_[tensor_][element], h = kStep * std::max(0.1, std::fabs(x));
    const Side far = side(element, h), near = side(element, h / 2);
    const double wide = (far.plus - far.minus) / (2 * h), narrow = (near.plus - near.minus) / h;
    return {(4 * narrow - wide) / 3, -near.minus / (h / 2), near.plus / (h / 2), std::fabs(wide - narrow)};
  }

 private:
  struct Side {
    double plus = 0, minus = 0;
  };

  /// Moves an element up and down by about h, and returns for each direction the sum of (change of an output * gradient
  /// of that output) over all outputs.
  Side side(size_t element, double h) {
    Side found;
    for (const double sign : {1.0, -1.0}) {
      PluginValues moved = values_;
      double& value = moved[tensor_][element];
      value = static_cast<float>(value + sign * h);
      const double step = std::fabs(value - values_[tensor_][element]);
      const PluginValues outputs = run_forward_(moved);
      double sum = 0;
      for (size_t o = 0; o < outputs.size(); ++o) {
        const std::vector<double>& gradient = values_[built_.out_grads[o]];
        for (size_t i = 0; i < outputs[o].size() && !is_index(o); ++i)
          sum += (outputs[o][i] - middle_[o][i]) * gradient[i];
      }
      (sign > 0 ? found.plus : found.minus) = sum * h / step;
    }
    return found;
  }
  bool is_index(size_t o) const { return built_.graph.tensors[built_.forward.outputs[o]].dtype == DType::i32; }

  const PluginCase& built_;
  const PluginValues& values_;
  const TensorId tensor_;
  const std::function<PluginValues(const PluginValues&)>& run_forward_;
  PluginValues middle_;
};

/// The factor by which gradients are larger than slopes, where these are smooth; 1 if too few are.
double factor_of(const std::vector<double>& gradients, const std::vector<Slope>& slopes, double largest) {
  double product = 0, squares = 0;
  size_t smooth = 0;
  for (size_t k = 0; k < slopes.size(); ++k) {
    if (!slopes[k].is_smooth(largest)) continue;
    ++smooth;
    product += gradients[k] * slopes[k].value;
    squares += slopes[k].value * slopes[k].value;
  }
  return smooth < kLeastForFactor || squares < 1e-4 * largest * largest ? 1 : product / squares;
}

}  // namespace

PluginSlopes compare_slopes(const PluginCase& built, const PluginValues& values, size_t operand,
                            const std::function<PluginValues(const PluginValues&)>& run_forward) {
  const std::vector<double>& gradient = values[built.in_grads[operand]];
  SlopesOfOperand slopes(built, values, operand, run_forward);
  const size_t every = (gradient.size() + kMostElements - 1) / kMostElements;
  std::vector<size_t> elements;
  std::vector<Slope> found;
  double largest = 1e-4;
  for (size_t i = 0; i < gradient.size(); i += every) {
    elements.push_back(i);
    found.push_back(slopes.at(i));
    largest = std::max({largest, std::fabs(found.back().value), std::fabs(gradient[i])});
  }
  PluginSlopes result{.compared = static_cast<int64_t>(elements.size())};
  size_t wrong = 0, worst = 0;
  double worst_by = 0;
  for (size_t k = 0; k < elements.size(); ++k) {
    const Slope& slope = found[k];
    const double got = gradient[elements[k]], off = std::fabs(got - slope.value), slack = kSlopeTolerance * largest;
    // At a kink, any slope between the slopes of the two sides is correct.
    const bool is_between =
        got >= std::min(slope.left, slope.right) - slack && got <= std::max(slope.left, slope.right) + slack;
    if (off <= slack || is_between) continue;
    ++wrong;
    if (off > worst_by) worst = k;
    worst_by = std::max(worst_by, off);
  }
  if (wrong == 0) {
    std::vector<double> compared;
    for (const size_t element : elements) compared.push_back(gradient[element]);
    const double factor = factor_of(compared, found, largest);
    if (std::fabs(factor - 1) > kFactorTolerance)
      result.fault = fmt::format("{} is {:.5g} times as large as differences of forward",
                                 built.name_of(built.in_grads[operand]), factor);
    return result;
  }
  const double got = gradient[elements[worst]], expected = found[worst].value;
  const Shape& shape = built.graph.tensors[built.in_grads[operand]].shape;
  result.fault =
      fmt::format("{} is wrong in {} of {} elements: element {} is {:.6g}, but differences of forward give {:.6g}",
                  built.name_of(built.in_grads[operand]), wrong, elements.size(), element_text(shape, elements[worst]),
                  got, expected);
  if (std::fabs(expected) > 1e-3 * largest) result.fault += fmt::format(" ({:.3g} times as much)", got / expected);
  return result;
}

}  // namespace trainctl
