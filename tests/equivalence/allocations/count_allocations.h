// Counts heap allocations of all threads while counting is on.
#pragma once

#include <cstdint>

namespace trainctl {

struct AllocationCounts {
  int64_t ours = 0;       ///< all others
  int64_t libraries = 0;  ///< by code of oneDNN and the OpenMP runtime
};

/// False under sanitizers, which replace malloc themselves.
bool can_count_allocations();
void start_counting_allocations();
AllocationCounts stop_counting_allocations();

}  // namespace trainctl
