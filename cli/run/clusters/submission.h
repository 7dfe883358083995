// Submits a job to a cluster manager, and lists the commands that would start one.
#pragma once

#include <functional>
#include <string>

#include "cli/run/job_file.h"
#include "launcher/clusters/slurm.h"
#include "launcher/clusters/started_by.h"
#include "launcher/hosts/transport.h"

namespace trainctl {

/// True if the job must be submitted to a cluster manager, which has not started this process. Throws SpecError for a
/// target that `run` cannot submit to.
bool is_submitted(const JobSpec& spec, const clusters::StartedBy& by);

/// Returns the batch script and the command that would submit it. Throws SpecError, EnvError.
std::string submission_text(const JobFile& file, const JobSpec& spec);

/// Writes the batch script to log_output/slurm/<number>/ and submits it. Calls `announce` with the command before it
/// runs. clusters::remember() is up to the caller, once the user knows the job's number. Throws SpecError, EnvError.
clusters::SubmittedJob submit(const JobFile& file, const JobSpec& spec,
                              const std::function<void(const std::string&)>& announce);

/// Returns one line per command that would start the job's hosts, or its ranks on this host.
std::string start_commands(const JobSpec& spec, const hosts::Transport* transport);

}  // namespace trainctl
