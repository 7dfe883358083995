// What the graph alone says about cutting its layers: which factors may be cut, and which is the batch.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/text.h"
#include "engine/graph/graph.h"
#include "engine/plan/layout.h"

namespace trainctl {

struct LayerFacts {
  std::vector<std::string> why_not;  ///< one a factor: why it may not be cut; "" where it may
  int batch_factor = -1;             ///< the factor that runs over the rows of the micro-batch; -1: none
  bool is_loss = false;
};

std::vector<LayerFacts> sharding_facts(const Graph& graph);

/// The data tensor (without producer) whose dim 0 is the batch, or -1 in a graph that reads no data.
TensorId batch_tensor(const Graph& graph);

/// Of `axes`, the set with the largest product that divides `size`; the first in lexicographic order
/// where several are as large.
Axes largest_cut(const Mesh& mesh, const Axes& axes, int64_t size);

/// The rule for a layer: the one that names it, else the last pattern that matches. The loss is
/// meant only where it is named.
template <class PatternRule>
const PatternRule* rule_for(const std::vector<PatternRule>& rules, std::string_view layer, bool by_name_only) {
  const PatternRule* found = nullptr;
  for (const PatternRule& rule : rules) {
    if (rule.pattern == layer) return &rule;
    if (!by_name_only && glob_match(rule.pattern, layer)) found = &rule;
  }
  return found;
}

}  // namespace trainctl
