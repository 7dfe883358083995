// Facts about cutting layers that follow from the graph alone: which factors may be cut, and which is the batch.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/name_pattern.h"
#include "engine/base/text.h"
#include "engine/graph/graph.h"
#include "engine/plan/layout.h"

namespace trainctl {

struct LayerFacts {
  std::vector<std::string> why_not;  ///< one per factor: why it may not be cut; "" if it may
  std::vector<int> inner;            ///< factors that some node sums over inside (Rule::inner)
  int batch_factor = -1;             ///< the factor that runs over the rows of the micro-batch; -1: none
  bool is_loss = false;
};

std::vector<LayerFacts> sharding_facts(const Graph& graph);

/// Returns for each tensor the dim whose major factor is the rows of the micro-batch; -1: none. Tensors of the backward
/// pass have none, and neither has a batch of one row.
std::vector<int> batch_dims(const Graph& graph);

/// The data tensor (without producer) whose dim 0 is the batch; -1 in a graph that reads no data.
TensorId batch_tensor(const Graph& graph);

/// The subset of `axes` with the largest product that divides `size`; of equal ones the first in lexicographic
/// order.
Axes largest_cut(const Mesh& mesh, const Axes& axes, int64_t size);

/// The rule for a layer: the one that names it, else the last pattern that matches. The loss only matches by name. A
/// pattern that begins with '!' excludes its layers.
template <class PatternRule>
const PatternRule* rule_for(const std::vector<PatternRule>& rules, std::string_view layer, bool by_name_only) {
  const PatternRule* found = nullptr;
  for (const PatternRule& rule : rules) {
    const bool excludes = rule.pattern.starts_with('!');
    const std::string_view pattern = std::string_view(rule.pattern).substr(excludes ? 1 : 0);
    if (pattern == layer) return excludes ? nullptr : &rule;
    if (!by_name_only && name_matches(pattern, layer)) found = excludes ? nullptr : &rule;
  }
  return found;
}

}  // namespace trainctl
