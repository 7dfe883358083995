// What this process's control group (v2 or v1) allows it, and what the kernel did to it there.
#pragma once

#include <cstdint>
#include <string>

namespace trainctl {

/// CPU time that it and the groups above it allow, in cores; 0: no limit.
double quota_cores(const std::string& sys = "/sys/fs/cgroup", const std::string& proc = "/proc");

/// How often the kernel has killed in it for lack of memory, or on the host where no group counts that; -1: nobody
/// says. SIGKILL alone does not tell who sent it.
int64_t out_of_memory_kills(const std::string& sys = "/sys/fs/cgroup", const std::string& proc = "/proc");

}  // namespace trainctl
