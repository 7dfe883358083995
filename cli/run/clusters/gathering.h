// Determines the hosts on which `trainctl run` starts ranks when a cluster manager has started this process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "launcher/clusters/started_by.h"
#include "launcher/hosts/transport.h"

namespace trainctl {

struct Gathering {
  std::vector<std::string> overrides;                 ///< overrides that set the job's hosts
  std::shared_ptr<const hosts::Transport> transport;  ///< null: the job's own
  std::string notice;                                 ///< for the user; may be empty
  std::function<void(int exit_code)> end;             ///< call it at the end of the run; may be empty
};

/// For process 0. Calls `report` once with a line about hosts that it waits for. Throws SpecError, EnvError.
Gathering gather(const clusters::StartedBy& by, const JobSpec& job,
                 const std::function<void(const std::string&)>& report);

/// For the other processes: serves process 0 until it ends. Returns the exit code.
int serve_gathering(const clusters::StartedBy& by);

/// Writes cluster.json into the run's folder, for later starts of the same Slurm job.
void write_cluster(const clusters::StartedBy& by, const std::string& run_folder);

/// The newest run in `log_dir` of an earlier start of this job that has a checkpoint to resume from; 0: none.
int earlier_run(const clusters::StartedBy& by, const std::string& log_dir);

}  // namespace trainctl
