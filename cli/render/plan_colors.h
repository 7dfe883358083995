// Colors of `trainctl plan`, added to its finished text.
#pragma once

#include <string>

namespace trainctl {

/// Headings are bold, table heads and idle time dim, notes yellow; sharded dims, kinds of communication and the tasks
/// of a schedule each have a color.
std::string color_plan(const std::string& text);

}  // namespace trainctl
