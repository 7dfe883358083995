// Checks before the ranks start that the host has memory for their arenas.
#pragma once

#include <cstdint>
#include <vector>

namespace trainctl {

/// Available bytes of the host, including swap.
int64_t available_memory();

/// Throws EnvError if the arenas together need more memory than is available.
void require_memory(const std::vector<int64_t>& arena_bytes_per_rank);

}  // namespace trainctl
