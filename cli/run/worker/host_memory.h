// Checks before the ranks start that the host has memory for their arenas.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/source_pos.h"

namespace trainctl {

/// Available bytes of the host, including swap.
int64_t available_memory();

/// Throws EnvError if the arenas, and what each rank keeps of the data set, need more memory than is available.
/// `data_set` is where the job describes it.
void require_memory(const std::vector<int64_t>& arena_bytes_per_rank, int64_t data_bytes_of_a_rank,
                    const SourcePos& data_set);

}  // namespace trainctl
