// Reaches the nodes of a Slurm allocation with srun: no ssh is needed, and Slurm accounts for the ranks and limits
// them. The agent lives as long as its step: when srun ends, Slurm ends the agent and its ranks, so a lost host does
// not return within an attempt.
#pragma once

#include <memory>
#include <string>

#include "launcher/hosts/transport.h"

namespace trainctl::clusters {

/// `job`: the number of the allocation.
std::unique_ptr<hosts::Transport> srun_transport(std::string job);

}  // namespace trainctl::clusters
