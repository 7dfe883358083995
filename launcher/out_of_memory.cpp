// memory.events of our control group, else /proc/vmstat.
#include "launcher/out_of_memory.h"

#include <fstream>
#include <string>

namespace trainctl {
namespace {

int64_t read_count(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  int64_t count = 0;
  while (file >> name >> count) {
    if (name == "oom_kill") return count;
  }
  return -1;
}

/// "0::/user.slice/session-1.scope" -> "/user.slice/session-1.scope".
std::string own_group() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return "";
}

}  // namespace

int64_t out_of_memory_kills() {
  const int64_t of_group = read_count("/sys/fs/cgroup" + own_group() + "/memory.events");
  return of_group >= 0 ? of_group : read_count("/proc/vmstat");
}

}  // namespace trainctl
