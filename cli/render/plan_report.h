// The report of `trainctl plan` as text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace trainctl {

/// Uses only plan_report()'s data, so the text and --json agree.
std::string render_plan(const nlohmann::ordered_json& report);

/// The schedule as a drawing: one row per stage, one column per unit of time (a backward takes two).
std::string draw_schedule(const nlohmann::ordered_json& tasks);

}  // namespace trainctl
