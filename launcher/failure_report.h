// The report for the user when a run has failed: consequences first, the first cause and its last words last.
#pragma once

#include <string>

#include "launcher/supervisor.h"

namespace trainctl {

/// The cause in one line, without the rank's own error message; empty if nothing failed.
std::string cause_line(const std::vector<RankReport>& reports, const Cause& cause, const Cluster& cluster);

/// Several lines; empty if nothing failed.
std::string failure_report(const Outcome& outcome, const Cluster& cluster, const RunDirectory& directory);

/// The run's outcome.json: exit code and seconds.
std::string outcome_json(const Outcome& outcome);
/// The same without what needs much room: less than 1 KiB.
std::string brief_outcome_json(const Outcome& outcome);

/// The run's error.json: the cause, and how every rank ended.
std::string failure_json(const Outcome& outcome, const Cluster& cluster);

}  // namespace trainctl
