// Runs a node of a plugin on simulated ranks. Each operand of each rank is surrounded by guard bytes, and results begin
// with bytes that a kernel must not depend on.
#pragma once

#include <string>
#include <vector>

#include "engine/ops/plugins/check/plugin_case.h"

namespace trainctl {

/// The number of ways that each factor of the layer is cut: the ranks are their product.
using PluginCuts = std::vector<int>;

struct PluginRunOptions {
  std::byte poison{0xff};  ///< bytes of results before the kernel runs; 0xff: NaN
  int threads = 1;
  bool adds = false;       ///< onto kPluginBefore
  bool in_place = false;   ///< output 0 in the memory of input 0
  std::string place = {};  ///< for errors
};
inline constexpr float kPluginBefore = 0.75f;

struct PluginRun {
  PluginValues results;             ///< one per output of the node, whole
  std::vector<std::string> faults;  ///< memory that the kernel wrote though it must not
};

/// Throws PluginFailure.
PluginRun run_plugin_node(const PluginCase& built, const Node& node, const PluginCuts& cuts, const PluginValues& values,
                          const PluginRunOptions& options);

/// Index of the first element of `tensor` along each dim: "[0, 3]".
std::string element_text(const Shape& shape, size_t element);

}  // namespace trainctl
