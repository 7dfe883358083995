// Settings for tests/jobs/transformer.yaml, whose blocks are cut as Megatron cuts them.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "engine/base/text.h"

namespace trainctl::transformer {

/// Strategies that cut q, k, v and fc1 by output columns, and proj and fc2 by input columns. `more` strategies follow
/// these.
inline std::string tensor_parallel(int ways, const std::vector<std::string>& more = {}) {
  std::vector<std::string> all;
  for (const char* layer : {"q", "k", "v", "fc1"})
    all.push_back(fmt::format("h.*.{}: [[1, 1, 1], [{}, 1]]", layer, ways));
  for (const char* layer : {"proj", "fc2"}) all.push_back(fmt::format("h.*.{0}: [[1, 1, {1}], [1, {1}]]", layer, ways));
  all.insert(all.end(), more.begin(), more.end());
  return "parallel.strategies={" + join(all) + "}";
}

/// Strategies that keep everything between the products whole on every rank.
inline std::string whole_norms(int ways) {
  return tensor_parallel(ways, {"wte: [[1, 1]]", "'h.*.ln?': [[1, 1, 1]]", "'h.*.drop?': [[1, 1, 1]]",
                                "'h.*.sum?': [[1, 1, 1]]", "ln: [[1, 1, 1]]", "head: [[1, 1, 1]]"});
}

/// Strategies that cut norms by rows of the sequence; dropout and residuals follow them.
inline std::string sequence_norms(int ways) {
  const std::string rows = fmt::format("[[1, {}, 1]]", ways);
  return tensor_parallel(ways,
                         {fmt::format("wte: [[1, {}]]", ways), "'h.*.ln?': " + rows, "ln: " + rows, "head: " + rows});
}

inline const std::string kStages = "parallel.stages=2";
inline const std::string kStageOfBlocks = "parallel.stage_config={wte: 0, h.0.*: 0, h.1.*: 1, ln: 1, head: 1}";

/// Recomputes everything in a block except its output, which the next block keeps as its input.
inline const std::string kRecompute =
    "parallel.recompute=['h.*.ln?', 'h.*.q*', 'h.*.k*', 'h.*.v*', h.*.scores, h.*.weights, 'h.*.mixed*', h.*.joined, "
    "h.*.proj, 'h.*.drop?', h.*.sum1, 'h.*.fc?', h.*.act]";

}  // namespace trainctl::transformer
