// Reads the CPU time and memory of processes from /proc (proc(5)): stat has the name in parentheses, which may contain
// anything, then fields by number.
#include "launcher/process_usage.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace trainctl {
namespace {

namespace fs = std::filesystem;

std::string read_proc_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// Adds the usage of a process to that of its group.
void add(const std::string& stat, std::map<int, ProcessUsage>& groups) {
  constexpr int kGroup = 5, kUserTime = 14, kSystemTime = 15, kResident = 24;
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string word;
  int group = 0;
  double ticks = 0;
  int64_t pages = 0;
  for (int number = 3; number <= kResident && fields >> word; ++number) {
    if (number == kGroup) group = std::atoi(word.c_str());
    if (number == kUserTime || number == kSystemTime) ticks += std::atof(word.c_str());
    if (number == kResident) pages = std::atoll(word.c_str());
  }
  ProcessUsage& usage = groups[group];
  usage.cpu_seconds += ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  usage.resident_bytes += pages * sysconf(_SC_PAGESIZE);
  ++usage.processes;
}

}  // namespace

std::map<int, ProcessUsage> usage_by_group(const std::string& proc) {
  std::map<int, ProcessUsage> groups;
  std::error_code error;  // processes may end meanwhile
  for (fs::directory_iterator at(proc, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos) add(read_proc_file(at->path() / "stat"), groups);
  }
  return groups;
}

HostUsage host_usage(const std::string& proc) {
  HostUsage usage;
  usage.cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  std::istringstream(read_proc_file(proc + "/loadavg")) >> usage.load;
  std::istringstream lines(read_proc_file(proc + "/meminfo"));
  std::string name, unit;
  for (int64_t kib = 0; lines >> name >> kib && std::getline(lines, unit);) {
    if (name == "MemTotal:") usage.memory_bytes = kib * 1024;
    if (name == "MemAvailable:") usage.available_bytes = kib * 1024;
  }
  return usage;
}

}  // namespace trainctl
