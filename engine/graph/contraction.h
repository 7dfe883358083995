// The indices that a node sums over.
#pragma once

#include <vector>

#include "engine/graph/rule.h"

namespace trainctl {

/// Returns, in ascending order, the factors that some input has and output `output` does not have, except inner ones.
/// Cutting such a factor leaves that output a partial sum.
std::vector<int> contracted_factors(const Rule& rule, int output);

/// True if `factor` is one of these factors.
bool is_contracted(const Rule& rule, int output, int factor);

/// True if some output sums over an index.
bool contracts(const Rule& rule);

}  // namespace trainctl
