// Colours of `trainctl plan`: put into its finished text, which is the same without them.
#pragma once

#include <string>

namespace trainctl {

/// Headings are bold, heads of tables and idle time dim, notes yellow; cut dims, kinds of communication and the tasks of
/// a schedule each have a colour.
std::string color_plan(const std::string& text);

}  // namespace trainctl
