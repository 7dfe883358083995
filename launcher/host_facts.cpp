// Facts about this machine: for machine.json of a run's folder, and about.txt of a bundle.
#include "launcher/host_facts.h"

#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

namespace trainctl {
namespace {

/// The value after `key` in the first line that begins with it.
std::string value_in(const std::string& path, std::string_view key, const std::string& otherwise = "unknown") {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    line.erase(0, key.size());
    line.erase(0, line.find_first_not_of("\t :="));
    std::erase(line, '"');
    return line;
  }
  return otherwise;
}

}  // namespace

HostFacts host_facts() {
  utsname host{};
  uname(&host);
  struct sysinfo memory {};
  sysinfo(&memory);
  HostFacts facts;
  facts.name = host.nodename;
  facts.system = value_in("/etc/os-release", "PRETTY_NAME");
  facts.kernel = std::string(host.sysname) + " " + host.release + " " + host.machine;
  facts.cpu = value_in("/proc/cpuinfo", "model name");
  facts.cpus = sysconf(_SC_NPROCESSORS_ONLN);
  facts.memory_bytes = static_cast<int64_t>(memory.totalram) * static_cast<int64_t>(memory.mem_unit);
  facts.gpu_driver = value_in("/proc/driver/nvidia/version", "NVRM version", "");
  return facts;
}

std::string machine_json(const HostFacts& host, const std::string& version) {
  const nlohmann::ordered_json json = {{"trainctl", version},
                                       {"host", host.name},
                                       {"system", host.system},
                                       {"kernel", host.kernel},
                                       {"cpu", host.cpu},
                                       {"cpus", host.cpus},
                                       {"memory_bytes", host.memory_bytes},
                                       {"gpu_driver", host.gpu_driver}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace trainctl
