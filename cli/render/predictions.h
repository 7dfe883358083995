// Renders a plan's predictions for a step, and the plans of a search side by side.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace trainctl {

/// Sections of a plan's report; "" if it has no predictions.
std::string render_estimate(const nlohmann::ordered_json& report);
std::string render_search(const nlohmann::ordered_json& report);

}  // namespace trainctl
