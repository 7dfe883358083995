// Checks parallel.max_memory against what the programs need, before anything starts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/planning/planned_job.h"

namespace trainctl {

/// A limit on what one rank may need.
struct MemoryHolder {
  std::string name;  ///< "but parallel.max_memory is", "gpu 3 has"
  int64_t bytes = 0;
  std::string note;  ///< printed after the bytes; may be empty
};

/// Describes by how much a limit is exceeded, and which changes of the job would fit. Each change is planned to find
/// out.
struct MemoryExcess {
  std::string message;  ///< rank 3 needs 91.2 GiB, but parallel.max_memory is 78.0 GiB (weights 24.1 GiB, …)
  std::string advice;  ///< set parallel.optimizer_shard.level: 2 (48.9 GiB), or parallel.recompute: ['h.*.norm1'] (…)
};

/// Returns nullopt if every rank fits.
std::optional<MemoryExcess> over_memory_limit(const PlannedJob& job, const std::vector<Program>& programs);
/// The same with the limit that `holder` describes in place of parallel.max_memory.
std::optional<MemoryExcess> over_memory_of(const PlannedJob& job, const std::vector<Program>& programs,
                                           const MemoryHolder& holder);

/// Throws SpecError at launch.machine, with the same advice, if a rank needs more than a device of the machine has.
void require_machine_memory(const PlannedJob& job, const std::vector<Program>& programs);

/// Throws SpecError at parallel.max_memory, with the advice as its hint.
void require_memory_limit(const PlannedJob& job, const std::vector<Program>& programs);

}  // namespace trainctl
