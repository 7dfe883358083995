// Recomputes the first updates of a one-rank run from their gradients, in double precision and from the formulas of
// PyTorch's documentation: a kernel of an optimizer that is wrong on every rank is wrong on one rank too.
#include "engine/train/verification/update_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/compile/parameter_optimizer.h"
#include "engine/ops/update_formula.h"
#include "engine/runtime/initial_weights.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/verification/reduced_job.h"

namespace trainctl {
namespace {

/// Half the distance of neighbouring f32 numbers, relative to them.
constexpr double kHalfUlp = 6e-8;
/// clip_grad_norm_ of PyTorch adds this to a norm.
constexpr double kClipEps = 1e-6;

void add_range(const StoredRange& range, int64_t first, int64_t count, int64_t offset, Executor& executor,
               TensorValues& values) {
  std::vector<float>& all = values[range.variable->name];
  all.resize(static_cast<size_t>(num_elements(range.variable->global_shape)));
  executor.read(offset, all.data() + first, count * byte_size(DType::f32));
}

/// A parameter after the recomputed updates. `rate`: of the first one.
std::vector<double> updated(const Optimizer& optimizer, double rate, const Shape& shape,
                            const std::vector<float>& start, const std::vector<const std::vector<float>*>& gradients,
                            const std::vector<double>& scales, double clip_value) {
  const UpdateFormula formula = find_update_formula(optimizer.def);
  FormulaParameter parameter(shape, {start.begin(), start.end()});
  for (size_t step = 0; step < gradients.size(); ++step) {
    std::vector<double> clipped(gradients[step]->begin(), gradients[step]->end());
    for (double& g : clipped) {
      g *= scales[step];
      if (clip_value > 0) g = std::clamp(g, -clip_value, clip_value);
    }
    const double of_step = rate * std::pow(kVerifiedDecay, static_cast<double>(step));
    formula(optimizer.settings, static_cast<int64_t>(step) + 1, of_step, clipped, parameter);
  }
  return parameter.weights;
}

/// The factor of clip_norm for all gradients of a step.
double clip_scale(const TensorValues& gradients, double clip_norm) {
  if (clip_norm <= 0) return 1;
  double squares = 0;
  for (const auto& [name, values] : gradients)
    for (const float value : values) squares += double{value} * value;
  return std::min(1.0, clip_norm / (std::sqrt(squares) + kClipEps));
}

/// |a - b| / |b - start|, without differences that rounding explains and elements of b that are NaN.
double move_difference(const std::vector<float>& a, const std::vector<double>& b, const std::vector<float>& start) {
  double apart = 0, moved = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(b[i])) continue;
    const double rounding = 2 * kRecomputedUpdates * kHalfUlp * std::max(std::abs(b[i]), double{std::abs(start[i])});
    const double difference = std::max(std::abs(double{a[i]} - b[i]) - rounding, 0.0), move = b[i] - double{start[i]};
    apart += difference * difference;
    moved += move * move;
  }
  return moved > 0 ? std::sqrt(apart / moved) : apart > 0 ? INFINITY : 0;
}

}  // namespace

TensorValues limited_norms(TensorValues gradients, double limit) {
  for (auto& [name, values] : gradients) {
    double squares = 0;
    for (const float value : values) squares += double{value} * value;
    const double scale = std::min(1.0, limit / (std::sqrt(squares) + kClipEps));
    for (float& value : values) value = static_cast<float>(value * scale);
  }
  return gradients;
}

std::string why_not_recomputed(const OptimizerSpec& optimizer) {
  if (optimizer.state_type != StateType::fp32) return "states in fewer bits are rounded";
  return "";
}

void UpdateWitness::look(const Program& program, int64_t step, Executor& executor) {
  if (step > kRecomputedUpdates) return;
  TensorValues& weights = weights_.emplace_back();
  for (const StoredRange& range : stored_ranges(program))
    if (has_initial_values(range) && range.dtype == DType::f32 && !range.is_copy && range.count > 0)
      add_range(range, range.first, range.count, range.offset, executor, weights);
  if (step == 0) return;
  TensorValues& gradients = gradients_.emplace_back();
  for (const StoredRange& range : gradient_ranges(program))
    if (range.dtype == DType::f32 && range.own_count > 0)
      add_range(range, range.own_first, range.own_count, range.own_offset(), executor, gradients);
}

bool UpdateWitness::is_complete() const {
  return weights_.size() == kRecomputedUpdates + 1 && gradients_.size() == kRecomputedUpdates && !gradients_[0].empty();
}

ValueDifference UpdateWitness::compare(const Graph& graph, const OptimizerSpec& optimizer, double tolerance) const {
  ValueDifference found;
  std::vector<double> scales;
  for (const TensorValues& gradients : gradients_) scales.push_back(clip_scale(gradients, optimizer.clip_norm));
  for (const Update& update : graph.updates) {
    const Tensor& parameter = graph.tensors[static_cast<size_t>(update.parameter)];
    const std::string& name = parameter.name;
    if (!gradients_[0].contains(name)) continue;
    const Optimizer of =
        optimizer_of(optimizer, update.group, uses_companion(graph, optimizer, update.parameter, update.group));
    const double rate = optimizer.learning_rate.base * optimizer.learning_rate_scale(update.group);
    const std::vector<float>& start = weights_.front().at(name);
    std::vector<const std::vector<float>*> gradients;
    for (const TensorValues& of_step : gradients_) gradients.push_back(&of_step.at(name));
    const std::vector<double> expected =
        updated(of, rate, parameter.shape, start, gradients, scales, optimizer.clip_value);
    const double difference = move_difference(weights_.back().at(name), expected, start);
    if (!(difference <= found.largest)) {
      found.largest = difference;
      found.at = name;
    }
    if (!(difference <= tolerance))
      found.findings.push_back(
          fmt::format("{}: the update differs from the formula of {} by {:.2g}", name, of.def.name, difference));
  }
  return found;
}

}  // namespace trainctl
