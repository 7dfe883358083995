// Finds uses of integers of the data set as indices: the classes of a loss, the rows of a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/graph/graph.h"

namespace trainctl {

struct IndexUse {
  std::string input;                    ///< "data" or "label"
  std::string reader;                   ///< "layer 'emb' (embedding)", "the loss (softmax_cross_entropy)"
  int64_t below = 0;                    ///< every element must be in [0, below)
  std::optional<int64_t> ignored = {};  ///< or be this number (a loss's ignore_index)

  bool accepts(int64_t value) const { return (value >= 0 && value < below) || value == ignored; }
  friend bool operator==(const IndexUse&, const IndexUse&) = default;
};

/// Each once, in the order of the graph.
std::vector<IndexUse> index_uses(const Graph& graph);

}  // namespace trainctl
