// What the user reads when a run has failed: consequences first, the first cause and its last words last.
#pragma once

#include <string>

#include "launcher/supervisor.h"

namespace trainctl {

/// Several lines; empty where nothing failed.
std::string failure_report(const Outcome& outcome, const Cluster& cluster, const RunDirectory& directory);

/// The run's error.json: the cause, and how every rank ended.
std::string failure_json(const Outcome& outcome, const Cluster& cluster);

/// The last `lines` lines of a text file, without reading all of it.
std::string tail_of_file(const std::string& path, int lines);

}  // namespace trainctl
