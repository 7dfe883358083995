// The part of a plan's text about parameter servers.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace trainctl {

/// What each server holds, what a step moves, and what counting bytes says of other counts of servers; "" without
/// servers.
std::string render_served(const nlohmann::ordered_json& report);

}  // namespace trainctl
