// Counts what this program allocates with new.
#pragma once

#include <cstdint>

namespace trainctl {

/// Calls of operator new so far, of all threads.
int64_t allocations();

}  // namespace trainctl
