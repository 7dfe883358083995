// Renders a plan's predictions for a step, and the plans of a search side by side.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace trainctl {

/// Sections of a plan's report; "" if it has no predictions. `width`: columns of a line; 0: unlimited.
std::string render_estimate(const nlohmann::ordered_json& report);
std::string render_search(const nlohmann::ordered_json& report, size_t width);

}  // namespace trainctl
