// The indices that a node sums over.
#pragma once

#include <vector>

#include "engine/graph/rule.h"

namespace trainctl {

/// Factors that inputs have and output `output` does not have, except inner ones, ascending: cutting one leaves that
/// output a partial sum.
std::vector<int> contracted_factors(const Rule& rule, int output);

/// True if `factor` is one of them.
bool is_contracted(const Rule& rule, int output, int factor);

/// Some output sums over an index.
bool contracts(const Rule& rule);

}  // namespace trainctl
