// The CPU limit of this process's control group (v2 or v1), and the kernel's out-of-memory kills in it.
#pragma once

#include <cstdint>
#include <string>

namespace trainctl {

/// CPU time that the group and its ancestors allow, in cores; 0: no limit.
double quota_cores(const std::string& sys = "/sys/fs/cgroup", const std::string& proc = "/proc");

/// Number of out-of-memory kills in the group, or on the host if no group counts them; -1: unknown. Needed because a
/// process killed by SIGKILL does not show its sender.
int64_t out_of_memory_kills(const std::string& sys = "/sys/fs/cgroup", const std::string& proc = "/proc");

}  // namespace trainctl
