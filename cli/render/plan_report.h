// The report of `trainctl plan` as text for people.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace trainctl {

/// From plan_report()'s data alone, so text and --json say the same.
std::string render_plan(const nlohmann::ordered_json& report);

/// The schedule as a drawing: one row a stage, one column a unit of time (a backward takes two).
std::string draw_schedule(const nlohmann::ordered_json& tasks);

}  // namespace trainctl
