// Submits a job to a cluster manager for `trainctl run`, or prints the commands that would run.
#pragma once

#include "cli/commands/job_arguments.h"
#include "launcher/clusters/started_by.h"
#include "launcher/hosts/transport.h"

namespace trainctl {

/// Whether to submit the job to a manager: it has not already started this process. Throws SpecError for a
/// target that `run` cannot submit to.
bool is_submitted(const JobSpec& spec, const clusters::StartedBy& by);

/// Writes the batch script to log_output/slurm/<number>/ and submits it. Returns the exit code. `dry_run`: only prints
/// the script and the command. Throws SpecError, EnvError.
int submit(const JobArguments& arguments, const JobSpec& spec, bool dry_run);

/// Prints the commands that would start the job's hosts, or its ranks on this host. Returns the exit code.
int show_commands(const JobSpec& spec, const hosts::Transport* transport);

}  // namespace trainctl
