// The CPU limit of this process's control group and the kernel's out-of-memory kills in it, from cpu.max and
// memory.events (v2), or cpu.cfs_quota_us and memory.oom_control (v1).
#include "launcher/control_group.h"

#include <algorithm>
#include <fstream>
#include <vector>

namespace trainctl {
namespace {

/// /proc/self/cgroup has one line per hierarchy: "4:memory:/docker/ab12" (v1), "0::/user.slice/session-1.scope" (v2).
std::string own_group(const std::string& proc, const std::string& controller) {
  std::ifstream file(proc + "/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers == "," + controller + "," ||
        (!controller.empty() && controllers.find("," + controller + ",") != std::string::npos)) {
      return line.substr(second + 1);
    }
  }
  return "";
}

/// `base`/a/b, `base`/a, `base`. In a container the path may be the host's, where only `base` is visible.
std::vector<std::string> group_and_above(const std::string& base, std::string group) {
  std::vector<std::string> paths;
  while (group.size() > 1) {
    paths.push_back(base + group);
    group.resize(group.rfind('/'));
  }
  paths.push_back(base);
  return paths;
}

/// "200000 100000": quota_us of every period_us.
double cores_of(double quota, double period) { return quota > 0 && period > 0 ? quota / period : 0; }

double read_number(const std::string& path) {
  std::ifstream file(path);
  double value = 0;
  return file >> value ? value : 0;
}

int64_t read_count(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  int64_t count = 0;
  while (file >> name >> count) {
    if (name == "oom_kill") return count;
  }
  return -1;
}

}  // namespace

double quota_cores(const std::string& sys, const std::string& proc) {
  double least = 0;
  const auto limit = [&](double cores) {
    if (cores > 0) least = least > 0 ? std::min(least, cores) : cores;
  };
  for (const std::string& path : group_and_above(sys, own_group(proc, ""))) {
    std::ifstream file(path + "/cpu.max");
    double quota = 0, period = 0;
    if (file >> quota >> period) limit(cores_of(quota, period));
  }
  for (const std::string& path : group_and_above(sys + "/cpu", own_group(proc, "cpu"))) {
    limit(cores_of(read_number(path + "/cpu.cfs_quota_us"), read_number(path + "/cpu.cfs_period_us")));
  }
  return least;
}

int64_t out_of_memory_kills(const std::string& sys, const std::string& proc) {
  for (const std::string& path : group_and_above(sys, own_group(proc, ""))) {
    if (const int64_t count = read_count(path + "/memory.events"); count >= 0) return count;
  }
  for (const std::string& path : group_and_above(sys + "/memory", own_group(proc, "memory"))) {
    if (const int64_t count = read_count(path + "/memory.oom_control"); count >= 0) return count;
  }
  return read_count(proc + "/vmstat");
}

}  // namespace trainctl
