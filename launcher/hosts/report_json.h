// Converts a RankReport to the form in which an agent sends it to its launcher, and back.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/supervision.h"

namespace trainctl::hosts {

/// `now`: unix seconds on this host; times are sent as ages, since clocks of hosts differ.
std::string report_json(const RankReport& report, double now);
/// `now`: unix seconds on the reader's host. nullopt if the text is not a report.
std::optional<RankReport> parse_report(std::string_view json, double now);

}  // namespace trainctl::hosts
