// Finds the factors that a node sums over: letters of its rule that inputs have and an output does not have.
#pragma once

#include <vector>

#include "engine/graph/rule.h"

namespace trainctl {

/// Factors that inputs have and output `output` does not have, except inner ones, ascending: cutting one leaves that
/// output a partial sum.
std::vector<int> contracted_factors(const Rule& rule, int output);

/// True if `factor` is one of contracted_factors(rule, output).
bool is_contracted(const Rule& rule, int output, int factor);

/// True if some output of the node sums over a factor.
bool contracts(const Rule& rule);

}  // namespace trainctl
