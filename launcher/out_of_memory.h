// Whether the kernel killed for lack of memory: what the control group counts, since SIGKILL alone does
// not say who sent it.
#pragma once

#include <cstdint>

namespace trainctl {

/// oom_kill of this process's control group (v2), or of the host where it has none; -1: nobody says.
int64_t out_of_memory_kills();

}  // namespace trainctl
