// Formulas of optimizers, element by element in double precision and independent of the kernels: trainctl verify
// compares updates with them.
#pragma once

#include <array>
#include <cstdint>

#include "engine/ops/optimizer_def.h"

namespace trainctl {

/// The states of an element: its momentum, or its first, second and largest second moment.
using FormulaState = std::array<double, 3>;

/// Returns the weight after update number `update`, from 1, and renews the state, which begins with zeros.
using UpdateFormula = double (*)(const Attrs& settings, int64_t update, double rate, double gradient, double weight,
                                 FormulaState& state);

/// The formula of an optimizer. Null: this file has none for it.
UpdateFormula find_update_formula(const OptimizerDef& optimizer);

}  // namespace trainctl
