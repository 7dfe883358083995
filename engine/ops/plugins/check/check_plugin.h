// Tests the ops of a plugin on CPUs: every legal cut of their examples against one rank, gradients against differences
// of the forward kernel, and what kernels do to memory.
#pragma once

#include <string>
#include <vector>

#include "engine/ops/plugins/plugin_op.h"

namespace trainctl {

struct PluginOpReport {
  int64_t calls = 0;                     ///< ranks that ran a kernel
  int64_t cuts = 0;                      ///< ways of cutting, over all examples
  int64_t slopes = 0;                    ///< elements whose gradients were compared with differences
  std::vector<std::string> cut_letters;  ///< "n 2, 3 and 4 ways"
  std::vector<std::string> notes;        ///< parts that could not be tested
  std::vector<std::string> faults;
};

PluginOpReport check_plugin_op(const PluginOp& op);

}  // namespace trainctl
