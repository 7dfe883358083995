#include "engine/graph/contraction.h"

#include <algorithm>
#include <iterator>

namespace trainctl {
namespace {

void add_factors(const TensorRule& rule, std::vector<int>& factors) {
  for (const DimRule& dim : rule) factors.insert(factors.end(), dim.begin(), dim.end());
}

void sort_once(std::vector<int>& factors) {
  std::sort(factors.begin(), factors.end());
  factors.erase(std::unique(factors.begin(), factors.end()), factors.end());
}

}  // namespace

std::vector<int> contracted_factors(const Rule& rule, int output) {
  std::vector<int> read, made, contracted;
  for (const TensorRule& input : rule.inputs) add_factors(input, read);
  add_factors(rule.outputs[output], made);
  made.insert(made.end(), rule.inner.begin(), rule.inner.end());
  sort_once(read);
  sort_once(made);
  std::set_difference(read.begin(), read.end(), made.begin(), made.end(), std::back_inserter(contracted));
  return contracted;
}

bool contracts(const Rule& rule) {
  for (int o = 0; o < static_cast<int>(rule.outputs.size()); ++o)
    if (!contracted_factors(rule, o).empty()) return true;
  return false;
}

}  // namespace trainctl
