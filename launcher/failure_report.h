// The report for the user when a run has failed: consequences first, then the first cause and its last lines.
#pragma once

#include <string>

#include "launcher/supervisor.h"

namespace trainctl {

/// " at step 412, …" or " during startup": where a rank is, for a sentence; "" if `doing` is empty.
std::string at_position(const std::string& doing);

/// The cause in one line, without the rank's own error message; empty if nothing failed.
std::string cause_line(const std::vector<RankReport>& reports, const Cause& cause, const Cluster& cluster);

/// Several lines; empty if nothing failed.
std::string failure_report(const Outcome& outcome, const Cluster& cluster, const RunDirectory& directory);

/// The run's outcome.json: exit code and seconds.
std::string outcome_json(const Outcome& outcome);
/// The same without long fields: less than 1 KiB.
std::string brief_outcome_json(const Outcome& outcome);

/// The run's error.json: the cause, and how every rank ended.
std::string failure_json(const Outcome& outcome, const Cluster& cluster);

}  // namespace trainctl
