// The formulas of optimizers in double precision, as PyTorch documents them, or the papers of those that it lacks.
#include "engine/ops/update_formula.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "engine/base/error.h"

namespace trainctl {
namespace {

/// Relative size of a sum in f32 below which rounding may change its sign.
constexpr double kSignRounding = 1e-6;

/// The states of one element.
using FormulaElement = std::array<double, 3>;
/// Returns the weight of one element after the update, and renews its state.
using ElementFormula = double (*)(const Attrs& settings, int64_t update, double rate, double gradient, double weight,
                                  FormulaElement& state);

template <ElementFormula formula>
void each_element(const Attrs& settings, int64_t update, double rate, const std::vector<double>& gradients,
                  FormulaParameter& parameter) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    FormulaElement state{parameter.states[0][i], parameter.states[1][i], parameter.states[2][i]};
    parameter.weights[i] = formula(settings, update, rate, gradients[i], parameter.weights[i], state);
    for (size_t s = 0; s < state.size(); ++s) parameter.states[s][i] = state[s];
  }
}

double formula_decay(const Attrs& settings) { return settings.number("weight_decay"); }

double formula_norm(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

double sgd_element(const Attrs& settings, int64_t /*update*/, double rate, double gradient, double weight,
                   FormulaElement& state) {
  const double factor = settings.number("momentum");
  const double g = gradient + formula_decay(settings) * weight;
  state[0] = factor * state[0] + g;
  return weight - rate * (settings.flag("nesterov") ? g + factor * state[0] : state[0]);
}

/// The direction of adam: the first moment divided by the root of the second, both corrected for their bias.
double adam_direction(const Attrs& settings, int64_t update, double g, bool amsgrad, FormulaElement& state) {
  const std::vector<double>& betas = settings.numbers("betas");
  state[0] = betas[0] * state[0] + (1 - betas[0]) * g;
  state[1] = betas[1] * state[1] + (1 - betas[1]) * g * g;
  state[2] = std::max(state[2], state[1]);
  const auto t = static_cast<double>(update);
  const double m = state[0] / (1 - std::pow(betas[0], t));
  const double v = state[amsgrad ? 2 : 1] / (1 - std::pow(betas[1], t));
  return m / (std::sqrt(v) + settings.number("eps"));
}

double adam_element(const Attrs& settings, int64_t update, double rate, double gradient, double weight,
                    FormulaElement& state) {
  const double g = gradient + formula_decay(settings) * weight;
  return weight - rate * adam_direction(settings, update, g, settings.flag("amsgrad"), state);
}

double adamw_element(const Attrs& settings, int64_t update, double rate, double gradient, double weight,
                     FormulaElement& state) {
  const double decayed = weight - rate * formula_decay(settings) * weight;
  return decayed - rate * adam_direction(settings, update, gradient, settings.flag("amsgrad"), state);
}

double nadam_element(const Attrs& settings, int64_t update, double rate, double gradient, double weight,
                     FormulaElement& state) {
  const std::vector<double>& betas = settings.numbers("betas");
  const auto mu = [&](int64_t t) {
    return betas[0] * (1 - 0.5 * std::pow(0.96, static_cast<double>(t) * settings.number("momentum_decay")));
  };
  double product = 1;
  for (int64_t t = 1; t <= update; ++t) product *= mu(t);
  const bool is_decoupled = settings.flag("decoupled_weight_decay");
  const double g = gradient + (is_decoupled ? 0 : formula_decay(settings) * weight);
  const double decayed = is_decoupled ? weight - rate * formula_decay(settings) * weight : weight;
  state[0] = betas[0] * state[0] + (1 - betas[0]) * g;
  state[1] = betas[1] * state[1] + (1 - betas[1]) * g * g;
  const double root = std::sqrt(state[1] / (1 - std::pow(betas[1], static_cast<double>(update))));
  const double ahead =
      (1 - mu(update)) * g / (1 - product) + mu(update + 1) * state[0] / (1 - product * mu(update + 1));
  return decayed - rate * ahead / (root + settings.number("eps"));
}

double adagrad_element(const Attrs& settings, int64_t /*update*/, double rate, double gradient, double weight,
                       FormulaElement& state) {
  const double g = gradient + formula_decay(settings) * weight;
  state[0] += g * g;
  return weight - rate * g / (std::sqrt(state[0]) + settings.number("eps"));
}

double rmsprop_element(const Attrs& settings, int64_t /*update*/, double rate, double gradient, double weight,
                       FormulaElement& state) {
  const double alpha = settings.number("alpha");
  const double g = gradient + formula_decay(settings) * weight;
  state[0] = alpha * state[0] + (1 - alpha) * g * g;
  state[1] = alpha * state[1] + (1 - alpha) * g;
  const double variance = settings.flag("centered") ? state[0] - state[1] * state[1] : state[0];
  const double step = g / (std::sqrt(std::max(variance, 0.0)) + settings.number("eps"));
  state[2] = settings.number("momentum") * state[2] + step;
  return weight - rate * state[2];
}

/// Rounding decides the sign of terms that cancel.
double lion_element(const Attrs& settings, int64_t /*update*/, double rate, double gradient, double weight,
                    FormulaElement& state) {
  const std::vector<double>& betas = settings.numbers("betas");
  const double momentum = state[0], ahead = betas[0] * momentum + (1 - betas[0]) * gradient;
  state[0] = betas[1] * momentum + (1 - betas[1]) * gradient;
  if (std::abs(ahead) < kSignRounding * std::max(std::abs(betas[0] * momentum), std::abs((1 - betas[0]) * gradient)))
    return NAN;
  const double sign = ahead > 0 ? 1 : ahead < 0 ? -1 : 0;
  return weight - rate * formula_decay(settings) * weight - rate * sign;
}

/// The states are the weights z of the steps, the second moment, and the average x of z.
void schedule_free_formula(const Attrs& settings, int64_t update, double rate, const std::vector<double>& gradients,
                           FormulaParameter& parameter) {
  auto& [z, v, x] = parameter.states;
  if (update == 1) z = x = parameter.weights;
  parameter.highest_rate = std::max(parameter.highest_rate, rate);
  parameter.squared_rates += parameter.highest_rate * parameter.highest_rate;
  const double share = parameter.highest_rate * parameter.highest_rate / parameter.squared_rates;
  const std::vector<double>& betas = settings.numbers("betas");
  const double bias = 1 - std::pow(betas[1], static_cast<double>(update));
  for (size_t i = 0; i < gradients.size(); ++i) {
    double& y = parameter.weights[i];
    v[i] = betas[1] * v[i] + (1 - betas[1]) * gradients[i] * gradients[i];
    z[i] -= rate * (gradients[i] / (std::sqrt(v[i] / bias) + settings.number("eps")) + formula_decay(settings) * y);
    x[i] += share * (z[i] - x[i]);
    y = betas[0] * x[i] + (1 - betas[0]) * z[i];
  }
}

void lamb_formula(const Attrs& settings, int64_t update, double rate, const std::vector<double>& gradients,
                  FormulaParameter& parameter) {
  std::vector<double>& weights = parameter.weights;
  std::vector<double> directions(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    FormulaElement state{parameter.states[0][i], parameter.states[1][i], 0};
    directions[i] = adam_direction(settings, update, gradients[i], false, state) + formula_decay(settings) * weights[i];
    parameter.states[0][i] = state[0];
    parameter.states[1][i] = state[1];
  }
  const double of_weights = formula_norm(weights), of_directions = formula_norm(directions);
  const bool adapts = settings.flag("adapt") && of_weights > 0 && of_directions > 0;
  const double ratio = adapts ? of_weights / of_directions : 1;
  for (size_t i = 0; i < weights.size(); ++i) weights[i] -= rate * ratio * directions[i];
}

void lars_formula(const Attrs& settings, int64_t /*update*/, double rate, const std::vector<double>& gradients,
                  FormulaParameter& parameter) {
  std::vector<double>&weights = parameter.weights, &buffer = parameter.states[0];
  const double of_weights = formula_norm(weights), of_gradients = formula_norm(gradients);
  const bool adapts = settings.flag("adapt") && of_weights > 0 && of_gradients > 0;
  const double limit = of_gradients + formula_decay(settings) * of_weights;
  const double ratio = adapts ? settings.number("trust_coefficient") * of_weights / limit : 1;
  const double momentum = settings.number("momentum");
  for (size_t i = 0; i < weights.size(); ++i) {
    const double d = ratio * (gradients[i] + formula_decay(settings) * weights[i]);
    buffer[i] = momentum * buffer[i] + d;
    weights[i] -= rate * (settings.flag("nesterov") ? d + momentum * buffer[i] : buffer[i]);
  }
}

/// A matrix, row by row.
struct FormulaMatrix {
  size_t rows = 0, cols = 0;
  std::vector<double> values;

  double at(size_t row, size_t col) const { return values[row * cols + col]; }
};

FormulaMatrix formula_transposed(const FormulaMatrix& a) {
  FormulaMatrix b{a.cols, a.rows, std::vector<double>(a.values.size())};
  for (size_t r = 0; r < a.rows; ++r)
    for (size_t c = 0; c < a.cols; ++c) b.values[c * a.rows + r] = a.at(r, c);
  return b;
}

FormulaMatrix formula_product(const FormulaMatrix& a, const FormulaMatrix& b) {
  FormulaMatrix c{a.rows, b.cols, std::vector<double>(a.rows * b.cols)};
  for (size_t r = 0; r < a.rows; ++r)
    for (size_t k = 0; k < a.cols; ++k)
      for (size_t j = 0; j < b.cols; ++j) c.values[r * b.cols + j] += a.at(r, k) * b.at(k, j);
  return c;
}

/// Five Newton-Schulz steps, which move the singular values of a matrix close to 1.
FormulaMatrix formula_orthogonalized(FormulaMatrix x) {
  const bool is_tall = x.rows > x.cols;
  if (is_tall) x = formula_transposed(x);
  const double norm = std::max(formula_norm(x.values), 1e-7);
  for (double& value : x.values) value /= norm;
  for (int step = 0; step < 5; ++step) {
    const FormulaMatrix gram = formula_product(x, formula_transposed(x));
    FormulaMatrix factor = formula_product(gram, gram);
    for (size_t i = 0; i < factor.values.size(); ++i)
      factor.values[i] = -4.7750 * gram.values[i] + 2.0315 * factor.values[i];
    FormulaMatrix next = formula_product(factor, x);
    for (size_t i = 0; i < next.values.size(); ++i) next.values[i] += 3.4445 * x.values[i];
    x = std::move(next);
  }
  return is_tall ? formula_transposed(x) : x;
}

void muon_formula(const Attrs& settings, int64_t /*update*/, double rate, const std::vector<double>& gradients,
                  FormulaParameter& parameter) {
  std::vector<double>&weights = parameter.weights, &m = parameter.states[0];
  const auto rows = static_cast<size_t>(parameter.shape.at(0));
  FormulaMatrix direction{rows, weights.size() / rows, gradients};
  const double momentum = settings.number("momentum");
  for (size_t i = 0; i < weights.size(); ++i) {
    m[i] += (1 - momentum) * (gradients[i] - m[i]);
    direction.values[i] = settings.flag("nesterov") ? gradients[i] + momentum * (m[i] - gradients[i]) : m[i];
  }
  const auto r = static_cast<double>(rows), c = static_cast<double>(direction.cols);
  const double factor =
      settings.flag("match_adamw") ? 0.2 * std::sqrt(std::max(r, c)) : std::sqrt(std::max(1.0, r / c));
  const FormulaMatrix turned = formula_orthogonalized(std::move(direction));
  for (size_t i = 0; i < weights.size(); ++i)
    weights[i] -= rate * (formula_decay(settings) * weights[i] + factor * turned.values[i]);
}

/// The variances of the elements of the matrices in the last two dims: products of means of rows and of columns. The
/// first elements of states 0 and 1 are those means.
std::vector<double> factored_variances(double share, double eps, const std::vector<double>& gradients,
                                       FormulaParameter& parameter) {
  const auto rows = static_cast<size_t>(parameter.shape.end()[-2]), cols = static_cast<size_t>(parameter.shape.back());
  std::vector<double>&of_rows = parameter.states[0], &of_cols = parameter.states[1];
  std::vector<double> variances(gradients.size());
  for (size_t first = 0; first < gradients.size(); first += rows * cols) {
    const size_t row = first / cols, col = first / rows;
    std::vector<double> row_squares(rows), col_squares(cols);
    for (size_t i = 0; i < rows * cols; ++i) {
      const double square = gradients[first + i] * gradients[first + i];
      row_squares[i / cols] += square / static_cast<double>(cols);
      col_squares[i % cols] += square / static_cast<double>(rows);
    }
    double mean = 0;
    for (size_t i = 0; i < rows; ++i) {
      of_rows[row + i] += share * (row_squares[i] - of_rows[row + i]);
      mean += of_rows[row + i] / static_cast<double>(rows);
    }
    for (size_t i = 0; i < cols; ++i) of_cols[col + i] += share * (col_squares[i] - of_cols[col + i]);
    for (size_t i = 0; i < rows * cols; ++i)
      variances[first + i] = of_rows[row + i / cols] * of_cols[col + i % cols] / std::max(mean, eps);
  }
  return variances;
}

void adafactor_formula(const Attrs& settings, int64_t update, double rate, const std::vector<double>& gradients,
                       FormulaParameter& parameter) {
  std::vector<double>& weights = parameter.weights;
  const auto t = static_cast<double>(update);
  const double share = std::pow(t, settings.number("beta2_decay")), eps = settings.number("eps");
  std::vector<double> changes;
  if (parameter.shape.size() >= 2) {
    changes = factored_variances(share, eps, gradients, parameter);
  } else {
    std::vector<double>& v = parameter.states[0];
    for (size_t i = 0; i < v.size(); ++i) v[i] += share * (gradients[i] * gradients[i] - v[i]);
    changes = v;
  }
  for (size_t i = 0; i < changes.size(); ++i) changes[i] = gradients[i] / std::sqrt(std::max(changes[i], eps * eps));
  const double root = std::sqrt(static_cast<double>(weights.size()));
  const double relative =
      std::max(settings.number("rms_eps"), formula_norm(weights) / root) * std::min(rate, 1 / std::sqrt(t));
  const double step = relative / std::max(1.0, formula_norm(changes) / root / settings.number("max_update_rms"));
  for (size_t i = 0; i < weights.size(); ++i)
    weights[i] -= rate * formula_decay(settings) * weights[i] + step * changes[i];
}

struct NamedFormula {
  std::string_view optimizer;
  UpdateFormula formula;
};

constexpr std::array<NamedFormula, 12> kFormulas = {{{"sgd", each_element<sgd_element>},
                                                     {"adam", each_element<adam_element>},
                                                     {"adamw", each_element<adamw_element>},
                                                     {"nadam", each_element<nadam_element>},
                                                     {"adagrad", each_element<adagrad_element>},
                                                     {"rmsprop", each_element<rmsprop_element>},
                                                     {"lion", each_element<lion_element>},
                                                     {"adafactor", adafactor_formula},
                                                     {"lamb", lamb_formula},
                                                     {"lars", lars_formula},
                                                     {"schedule_free_adamw", schedule_free_formula},
                                                     {"muon", muon_formula}}};

}  // namespace

UpdateFormula find_update_formula(const OptimizerDef& optimizer) {
  const auto found = std::find_if(kFormulas.begin(), kFormulas.end(),
                                  [&](const NamedFormula& named) { return named.optimizer == optimizer.name; });
  check(found != kFormulas.end(), "every optimizer has a formula in update_formula.cpp");
  return found->formula;
}

}  // namespace trainctl
