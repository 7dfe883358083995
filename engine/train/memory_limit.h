// parallel.max_memory against what the programs need, before anything starts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/train/job.h"

namespace trainctl {

/// What has room for a rank.
struct MemoryHolder {
  std::string name;  ///< "parallel.max_memory is", "gpu 3 has"
  int64_t bytes = 0;
  std::string note;  ///< said after the bytes; may be empty
};

/// Nothing where every rank fits. Else what is too much, by kind, and which changes of the job would fit
/// (found by planning each of them):
///   plan: rank 3 needs 91.2 GiB, parallel.max_memory is 78.0 GiB (weights 24.1 GiB, …)
///     set parallel.optimizer_shard.level: 2 (48.9 GiB), or launch.ranks: 16 (45.8 GiB)
std::optional<std::string> over_memory_limit(const PlannedJob& job, const std::vector<Program>& programs);
/// The same for another holder.
std::optional<std::string> over_memory_of(const PlannedJob& job, const std::vector<Program>& programs,
                                          const MemoryHolder& holder);

/// Throws that as an EnvError.
void require_memory_limit(const PlannedJob& job, const std::vector<Program>& programs);

}  // namespace trainctl
