// Finds the factors that a node sums over.
#include "engine/graph/contraction.h"

#include <algorithm>

namespace trainctl {
namespace {

bool has(const std::vector<int>& factors, int factor) {
  return std::find(factors.begin(), factors.end(), factor) != factors.end();
}

bool has(const TensorRule& rule, int factor) {
  return std::any_of(rule.begin(), rule.end(), [&](const DimRule& dim) { return has(dim, factor); });
}

}  // namespace

std::vector<int> contracted_factors(const Rule& rule, int output) {
  std::vector<int> contracted;
  for (const TensorRule& input : rule.inputs)
    for (const DimRule& dim : input)
      for (int factor : dim)
        if (!has(rule.outputs[output], factor) && !has(rule.inner, factor) && !has(contracted, factor))
          contracted.push_back(factor);
  std::sort(contracted.begin(), contracted.end());
  return contracted;
}

bool is_contracted(const Rule& rule, int output, int factor) {
  const bool is_read =
      std::any_of(rule.inputs.begin(), rule.inputs.end(), [&](const TensorRule& input) { return has(input, factor); });
  return is_read && !has(rule.outputs[output], factor) && !has(rule.inner, factor);
}

bool contracts(const Rule& rule) {
  for (int o = 0; o < static_cast<int>(rule.outputs.size()); ++o)
    if (!contracted_factors(rule, o).empty()) return true;
  return false;
}

}  // namespace trainctl
