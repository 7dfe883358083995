// The report of `trainctl plan` as text.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/render/fold.h"

namespace trainctl {

struct PlanStyle {
  bool full = false;   ///< every layer, redistribution and part on its own line
  size_t width = 120;  ///< largest width of the schedule's lines; 0: unlimited
};

/// The report's layers, a block that repeats once, as render_plan lists them.
std::vector<FoldLine> folded_layers(const nlohmann::ordered_json& report);

/// Uses only plan_report()'s data, so the text and --json agree. Unless `full`, what repeats is one line; each line is
/// true of all that it stands for.
std::string render_plan(const nlohmann::ordered_json& report, const PlanStyle& style);

}  // namespace trainctl
