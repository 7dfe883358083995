// Reaching the nodes of a Slurm allocation by srun: no ssh is needed, and whatever Slurm accounts and limits it does so
// for the ranks. The agent lives as long as its step: when srun ends, Slurm ends the agent and its ranks, so a host
// that was lost does not come back within an attempt.
#pragma once

#include <memory>
#include <string>

#include "launcher/hosts/transport.h"

namespace trainctl::clusters {

/// `job`: the number of the allocation.
std::unique_ptr<hosts::Transport> srun_transport(std::string job);

}  // namespace trainctl::clusters
