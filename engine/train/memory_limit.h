// parallel.max_memory against what the programs need, before anything starts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/train/job.h"

namespace trainctl {

/// Nothing where every rank fits. Else what is too much, by kind, and which changes of the job would fit
/// (found by planning each of them):
///   plan: rank 3 needs 91.2 GiB, parallel.max_memory is 78.0 GiB (weights 24.1 GiB, …)
///     set parallel.optimizer_shard.level: 2 (48.9 GiB), or launch.ranks: 16 (45.8 GiB)
std::optional<std::string> over_memory_limit(const PlannedJob& job, const std::vector<Program>& programs);

/// Throws that as an EnvError.
void require_memory_limit(const PlannedJob& job, const std::vector<Program>& programs);

}  // namespace trainctl
