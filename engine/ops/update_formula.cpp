// The formulas of optimizers in double precision, as PyTorch documents them.
#include "engine/ops/update_formula.h"

#include <algorithm>
#include <cmath>

namespace trainctl {

extern const OptimizerDef sgd_optimizer, adam_optimizer, adamw_optimizer;

namespace {

double sgd_formula(const Attrs& settings, int64_t /*update*/, double rate, double gradient, double weight,
                   FormulaState& state) {
  const double factor = settings.number("momentum");
  const double g = gradient + settings.number("weight_decay") * weight;
  state[0] = factor * state[0] + g;
  return weight - rate * (settings.flag("nesterov") ? g + factor * state[0] : state[0]);
}

double adam_step(const Attrs& settings, int64_t update, double rate, double g, double weight, FormulaState& state) {
  const std::vector<double>& betas = settings.numbers("betas");
  state[0] = betas[0] * state[0] + (1 - betas[0]) * g;
  state[1] = betas[1] * state[1] + (1 - betas[1]) * g * g;
  state[2] = std::max(state[2], state[1]);
  const auto t = static_cast<double>(update);
  const double m = state[0] / (1 - std::pow(betas[0], t));
  const double v = state[settings.flag("amsgrad") ? 2 : 1] / (1 - std::pow(betas[1], t));
  return weight - rate * m / (std::sqrt(v) + settings.number("eps"));
}

double adam_formula(const Attrs& settings, int64_t update, double rate, double gradient, double weight,
                    FormulaState& state) {
  return adam_step(settings, update, rate, gradient + settings.number("weight_decay") * weight, weight, state);
}

double adamw_formula(const Attrs& settings, int64_t update, double rate, double gradient, double weight,
                     FormulaState& state) {
  const double decayed = weight - rate * settings.number("weight_decay") * weight;
  return adam_step(settings, update, rate, gradient, decayed, state);
}

}  // namespace

UpdateFormula find_update_formula(const OptimizerDef& optimizer) {
  if (&optimizer == &sgd_optimizer) return sgd_formula;
  if (&optimizer == &adam_optimizer) return adam_formula;
  return &optimizer == &adamw_optimizer ? adamw_formula : nullptr;
}

}  // namespace trainctl
