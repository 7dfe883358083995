// The sections of a plan's text about parameter servers.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace trainctl {

/// Renders the parameters that each server owns, the bytes moved per step, and the estimated throughput with other
/// numbers of servers; "" without servers. `width`: columns of a line; 0: unlimited.
std::string render_served(const nlohmann::ordered_json& report, size_t width);

}  // namespace trainctl
