// See the header.
#include "engine/train/verification/update_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/compile/parameter_optimizer.h"
#include "engine/runtime/initial_weights.h"
#include "engine/runtime/stored_ranges.h"

namespace trainctl {
namespace {

/// Half the distance of neighbouring f32 numbers, relative to them.
constexpr double kHalfUlp = 6e-8;

void add_range(const StoredRange& range, int64_t first, int64_t count, int64_t offset, Executor& executor,
               TensorValues& values) {
  std::vector<float>& all = values[range.variable->name];
  all.resize(static_cast<size_t>(num_elements(range.variable->global_shape)));
  executor.read(offset, all.data() + first, count * byte_size(DType::f32));
}

/// One parameter through the recomputed updates.
class ParameterUpdates {
 public:
  ParameterUpdates(const Optimizer& optimizer, double rate, const std::vector<float>& start)
      : settings_(optimizer.settings), type_(optimizer.def.name), rate_(rate), w_(start.begin(), start.end()) {
    first_.resize(w_.size());
    second_.resize(w_.size());
    largest_.resize(w_.size());
  }

  void step(const std::vector<float>& gradient, double scale, double clip_value) {
    ++steps_;
    for (size_t i = 0; i < w_.size(); ++i) {
      double g = scale * double{gradient[i]};
      if (clip_value > 0) g = std::clamp(g, -clip_value, clip_value);
      type_ == "sgd" ? sgd(i, g) : adam(i, g);
    }
  }
  const std::vector<double>& weights() const { return w_; }

 private:
  void sgd(size_t i, double g) {
    const double momentum = settings_.number("momentum");
    g += settings_.number("weight_decay") * w_[i];
    first_[i] = momentum * first_[i] + g;
    w_[i] -= rate_ * (settings_.flag("nesterov") ? g + momentum * first_[i] : momentum > 0 ? first_[i] : g);
  }

  void adam(size_t i, double g) {
    const std::vector<double>& betas = settings_.numbers("betas");
    const double decay = settings_.number("weight_decay");
    if (type_ == "adamw")
      w_[i] -= rate_ * decay * w_[i];
    else
      g += decay * w_[i];
    first_[i] = betas[0] * first_[i] + (1 - betas[0]) * g;
    second_[i] = betas[1] * second_[i] + (1 - betas[1]) * g * g;
    largest_[i] = std::max(largest_[i], second_[i]);
    const double v = settings_.flag("amsgrad") ? largest_[i] : second_[i];
    const double m = first_[i] / (1 - std::pow(betas[0], steps_));
    w_[i] -= rate_ * m / (std::sqrt(v / (1 - std::pow(betas[1], steps_))) + settings_.number("eps"));
  }

  const Attrs& settings_;
  const std::string type_;
  const double rate_;
  std::vector<double> w_, first_, second_, largest_;
  int steps_ = 0;
};

/// The factor of clip_norm for all gradients of a step.
double clip_scale(const TensorValues& gradients, double clip_norm) {
  if (clip_norm <= 0) return 1;
  double squares = 0;
  for (const auto& [name, values] : gradients)
    for (const float value : values) squares += double{value} * value;
  const double norm = std::sqrt(squares);
  return norm > clip_norm ? clip_norm / norm : 1;
}

/// |a - b| / |b - start|, without differences that rounding explains.
double move_difference(const std::vector<float>& a, const std::vector<double>& b, const std::vector<float>& start) {
  double apart = 0, moved = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double rounding = 2 * kRecomputedUpdates * kHalfUlp * std::max(std::abs(b[i]), double{std::abs(start[i])});
    const double difference = std::max(std::abs(double{a[i]} - b[i]) - rounding, 0.0), move = b[i] - double{start[i]};
    apart += difference * difference;
    moved += move * move;
  }
  return moved > 0 ? std::sqrt(apart / moved) : apart > 0 ? INFINITY : 0;
}

}  // namespace

std::string why_not_recomputed(const OptimizerSpec& optimizer) {
  if (optimizer.type != "sgd" && optimizer.type != "adam" && optimizer.type != "adamw")
    return "the formulas of sgd, adam and adamw are recomputed, not that of " + optimizer.type;
  if (optimizer.clip_parameter_norm > 0) return "updates with clip_parameter_norm are not recomputed";
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
  for (const Update& update : graph.updates) {
    const std::string& name = graph.tensors[static_cast<size_t>(update.parameter)].name;
    if (!gradients_[0].contains(name)) continue;
    const Optimizer of = optimizer_of(optimizer, update.group, false);
    const double rate = optimizer.learning_rate.base * optimizer.learning_rate_scale(update.group);
    const std::vector<float>& start = weights_.front().at(name);
    ParameterUpdates updates(of, rate, start);
    for (const TensorValues& gradients : gradients_)
      updates.step(gradients.at(name), clip_scale(gradients, optimizer.clip_norm), optimizer.clip_value);
    const double difference = move_difference(weights_.back().at(name), updates.weights(), start);
    if (!(difference <= found.largest)) {
      found.largest = difference;
      found.at = name;
    }
    if (!(difference <= tolerance))
      found.findings.push_back(
          fmt::format("{}: the update differs from the formula of {} by {:.2g}", name, optimizer.type, difference));
  }
  return found;
}

}  // namespace trainctl
