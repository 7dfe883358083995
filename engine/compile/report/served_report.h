// parameter_server in the report of `trainctl plan`: which server owns which range of each parameter, and what each
// rank pushes and pulls.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/compile/rank_classes.h"

namespace trainctl {

/// Adds the fields `servers` and `traffic` to the report.
void add_served(nlohmann::ordered_json& report, const RankClasses& classes);

/// The number of parameter elements that a server owns, without padding.
int64_t owned_elements(const Program& server);

}  // namespace trainctl
