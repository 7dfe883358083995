// Checks, before the ranks start, that the host has enough memory for their arenas.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/source_pos.h"

namespace trainctl {

/// Available bytes of the host, including swap.
int64_t available_memory();

/// Throws EnvError if the arenas, plus the data that each rank keeps in memory, need more memory than is available.
/// `data_set`: position of the data set in the job.
void require_memory(const std::vector<int64_t>& arena_bytes_per_rank, int64_t data_bytes_per_rank,
                    const SourcePos& data_set);

}  // namespace trainctl
