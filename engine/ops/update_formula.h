// Formulas of optimizers, in double precision and independent of the kernels: trainctl verify compares updates with
// them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/graph/shape.h"
#include "engine/ops/optimizer_def.h"

namespace trainctl {

/// One whole parameter and the states of its elements.
struct FormulaParameter {
  FormulaParameter(const Shape& of, std::vector<double> start) : shape(of), weights(std::move(start)) {
    for (std::vector<double>& state : states) state.resize(weights.size());
  }

  Shape shape;
  std::vector<double> weights;  ///< NaN: rounding to f32 decides the update
  /// The formula decides what each state is; all begin with zeros.
  std::array<std::vector<double>, 3> states;
  /// The highest learning rate so far, and the sum of its squares over all updates (schedule_free_adamw).
  double highest_rate = 0, squared_rates = 0;
};

/// Makes update number `update`, from 1. `gradients`: after clipping, one per weight.
using UpdateFormula = void (*)(const Attrs& settings, int64_t update, double rate, const std::vector<double>& gradients,
                               FormulaParameter& parameter);

/// The formula of an optimizer, or of a companion of one. Every optimizer has one.
UpdateFormula find_update_formula(const OptimizerDef& optimizer);

}  // namespace trainctl
