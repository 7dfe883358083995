// CPU time and memory that processes use on this host, from /proc.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace trainctl {

struct ProcessUsage {
  double cpu_seconds = 0;      ///< since they were started
  int64_t resident_bytes = 0;  ///< shared memory counts for each process
  int processes = 0;
};

/// Usage by process group. Tests pass another folder as `proc`.
std::map<int, ProcessUsage> usage_by_group(const std::string& proc = "/proc");

struct HostUsage {
  double load = 0;  ///< load average of the last minute
  int cpus = 0;
  int64_t memory_bytes = 0, available_bytes = 0;
};
HostUsage host_usage(const std::string& proc = "/proc");

}  // namespace trainctl
