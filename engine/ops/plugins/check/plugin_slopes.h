// Gradients of a plugin's op against differences of its forward kernel.
#pragma once

#include <functional>
#include <string>

#include "engine/ops/plugins/check/plugin_case.h"

namespace trainctl {

struct PluginSlopes {
  int64_t compared = 0;  ///< elements
  std::string fault;     ///< ""; none
};

/// `run_forward` returns the outputs for these values of inputs and parameters. `values` has the gradient of `operand`.
PluginSlopes compare_slopes(const PluginCase& built, const PluginValues& values, size_t operand,
                            const std::function<PluginValues(const PluginValues&)>& run_forward);

}  // namespace trainctl
