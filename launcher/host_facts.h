// Facts about this machine: for machine.json of a run's folder, and about.txt of a bundle.
#pragma once

#include <cstdint>
#include <string>

namespace trainctl {

struct HostFacts {
  std::string name;
  std::string
      system;  ///< "Debian GNU/Linux 12 (bookworm)"; this and the following fields are "unknown" if not available
  std::string kernel;
  std::string cpu;  ///< its model
  int64_t cpus = 0;
  int64_t memory_bytes = 0;
  std::string gpu_driver;  ///< "" if there is none
};

HostFacts host_facts();

/// {"trainctl": version, "host", "system", "kernel", "cpu", "cpus", "memory_bytes", "gpu_driver"}
std::string machine_json(const HostFacts& host, const std::string& version);

}  // namespace trainctl
