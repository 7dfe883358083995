// The files that the launcher writes to a run's folder: the job and its plan at the start, the outcome at the end.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/run/launch/run_end.h"
#include "cli/run/launch/workload.h"
#include "launcher/cluster.h"
#include "launcher/run_directory.h"
#include "launcher/supervisor.h"

namespace trainctl {

/// The time that the end of a run waits for a disk, and for one that hangs.
inline constexpr double kDiskSeconds = 10, kHangingDiskSeconds = 1;

/// Writes job.yaml, plan.json and machine.json, and reserves space for outcome.json. Throws EnvError.
void write_job(const RunDirectory& directory, const Workload& workload);

/// launch.copy and the plugins.
std::vector<std::string> copied_to_hosts(const JobSpec& spec);
/// The job for other hosts, where job.yaml is two levels below the agent's folder with the copied files.
JobSpec job_on_hosts(const JobSpec& spec);

/// Joins the parts of printed tensors that hosts have written separately. Returns a line about what could not be
/// joined, or "".
std::string join_printed_tensors(const RunDirectory& directory);

/// The end of a run, for outcome.json and error.json.
struct RunOutcome {
  const Outcome& outcome;
  const Cluster& cluster;
  const RunResult& result;
  const std::string& report;  ///< failure_report
};

/// Writes error.json if a rank failed, and outcome.json. `more`: returns further fields of outcome.json, and may read
/// files. Returns lines about what could not be written.
std::string write_outcome(const RunDirectory& directory, const RunOutcome& run,
                          const std::function<nlohmann::ordered_json()>& more);

/// Writes error.json and outcome.json of a run whose launcher itself failed while its ranks ran. Does not throw: the
/// failure is reported on the terminal.
void write_failure(const RunDirectory& directory, const std::string& what, int exit_code, double seconds);

}  // namespace trainctl
