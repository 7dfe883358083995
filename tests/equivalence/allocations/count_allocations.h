// Counts what is asked of the heap, by all threads, while it is told to.
#pragma once

#include <cstdint>

namespace trainctl {

struct AllocationCounts {
  int64_t ours = 0;       ///< everything but the next
  int64_t libraries = 0;  ///< asked for by the code of oneDNN and the OpenMP runtime themselves
};

/// False under sanitizers, which have the heap to themselves.
bool can_count_allocations();
void start_counting_allocations();
AllocationCounts stop_counting_allocations();

}  // namespace trainctl
