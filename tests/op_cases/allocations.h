// Counts this program's allocations with new.
#pragma once

#include <cstdint>

namespace trainctl {

/// Calls of operator new so far, over all threads.
int64_t allocations();

}  // namespace trainctl
