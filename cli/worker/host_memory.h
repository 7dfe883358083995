// Is there room for the ranks' arenas before they are started?
#pragma once

#include <cstdint>
#include <vector>

namespace trainctl {

/// Bytes that the host has left, swap included.
int64_t available_memory();

/// Throws EnvError where the arenas together need more memory than the host has left.
void require_memory(const std::vector<int64_t>& arena_bytes_per_rank);

}  // namespace trainctl
