// Scans /proc. kill_leftovers also runs in a fork without exec, so it allocates nothing.
#include "launcher/stragglers.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

namespace trainctl {
namespace {

constexpr const char* kVariable = "TRAINCTL_RUN_MARK";
/// A process that forks during a pass is found in the next one.
constexpr int kMostPasses = 20;
/// Number of looks, a millisecond apart, at a process in the middle of exec.
constexpr int kMostLooks = 100;

struct DirectoryEntry {  // as getdents64 returns it
  uint64_t inode;
  int64_t next;
  uint16_t bytes;
  uint8_t type;
  char name[1];
};

ssize_t read_some(int fd, char* to, size_t bytes) {
  ssize_t got = 0;
  do {
    got = read(fd, to, bytes);
  } while (got < 0 && errno == EINTR);
  return got;
}

int open_file_of(int proc, const char* pid, const char* name) {
  std::array<char, 32> path{};
  std::strncat(path.data(), pid, 16);
  std::strcat(path.data(), name);
  return openat(proc, path.data(), O_RDONLY | O_CLOEXEC);
}

enum class Mark { none, found, unreadable };

Mark look_for_mark(int proc, const char* pid, const char* mark) {
  const int fd = open_file_of(proc, pid, "/environ");
  if (fd < 0) return Mark::none;
  static std::array<char, 1 << 16> text;
  const size_t length = std::strlen(mark);
  size_t kept = 0;
  Mark result = Mark::unreadable;
  for (ssize_t got = 0; result != Mark::found && (got = read_some(fd, text.data() + kept, text.size() - kept)) > 0;) {
    const size_t size = kept + static_cast<size_t>(got);
    result = memmem(text.data(), size, mark, length) != nullptr ? Mark::found : Mark::none;
    kept = size < length ? size : length;  // the mark may span two reads
    std::memmove(text.data(), text.data() + size - kept, kept);
  }
  close(fd);
  return result;
}

/// Called for a process whose environment was read as empty: returns whether to read it again. True if the process has
/// memory (kernel threads and zombies have none), and its environment is in one of three states: not set yet (end is
/// 0), set since the read (begin < end), or being filled in (begin == end, while the process runs; a process whose
/// environment stays empty mostly sleeps).
bool is_in_exec(int proc, const char* pid) {
  constexpr int kState = 3, kMemory = 23, kBegin = 50, kEnd = 51;  // fields of /proc/<pid>/stat
  const int fd = open_file_of(proc, pid, "/stat");
  if (fd < 0) return false;
  std::array<char, 2048> text{};
  const ssize_t got = read_some(fd, text.data(), text.size() - 1);
  close(fd);
  const char* at = got > 0 ? std::strrchr(text.data(), ')') : nullptr;  // after the name, which may contain blanks
  uint64_t memory = 0, begin = 0, end = 0;
  bool runs = false;
  for (int field = kState; at != nullptr && field <= kEnd; ++field) {
    at = std::strchr(at + 1, ' ');
    if (at == nullptr) return false;
    const uint64_t value = std::strtoull(at + 1, nullptr, 10);
    if (field == kState) runs = at[1] == 'R' || at[1] == 'D';
    if (field == kMemory) memory = value;
    if (field == kBegin) begin = value;
    if (field == kEnd) end = value;
  }
  return memory > 0 && (end == 0 || begin < end || runs);
}

/// "17 (name) S 1 …" of /proc/<pid>/stat. The name may contain blanks and parentheses.
struct ProcessStat {
  std::string name;
  char state = '\0';  ///< \0: there is no such process
  int group = 0;
};

ProcessStat stat_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  ProcessStat stat{.name = text.substr(open + 1, close - open - 1)};
  int parent = 0;
  std::istringstream(text.substr(close + 1)) >> stat.state >> parent >> stat.group;
  return stat;
}

std::string environment_of(int proc, const char* pid) {
  for (int look = 0; look < kMostLooks; ++look) {
    std::ifstream file("/proc/" + std::string(pid) + "/environ", std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!text.str().empty() || !file.is_open() || !is_in_exec(proc, pid)) return text.str();
    usleep(1000);
  }
  return "";
}

bool runs(const ProcessStat& stat) { return stat.state != '\0' && stat.state != 'Z' && stat.state != 'X'; }

bool has_mark(int proc, const char* pid, const char* mark) {
  for (int look = 0; look < kMostLooks; ++look) {
    const Mark result = look_for_mark(proc, pid, mark);
    if (result != Mark::unreadable) return result == Mark::found;
    if (!is_in_exec(proc, pid)) return false;
    const timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
    nanosleep(&pause, nullptr);
  }
  return false;
}

int kill_marked(int proc, const char* mark) {
  static std::array<char, 1 << 15> entries;
  int count = 0;
  lseek(proc, 0, SEEK_SET);
  for (long got = 0; (got = syscall(SYS_getdents64, proc, entries.data(), entries.size())) > 0;) {
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(entries.data() + at);
      at += entry->bytes;
      if (entry->name[0] < '1' || entry->name[0] > '9' || !has_mark(proc, entry->name, mark)) continue;
      if (kill(std::atoi(entry->name), SIGKILL) == 0) ++count;
    }
  }
  return count;
}

}  // namespace

std::string random_mark() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    const auto pid = static_cast<uint64_t>(getpid());
    std::memcpy(bytes.data(), &pid, sizeof pid);
  }
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte / 16];
    text += "0123456789abcdef"[byte % 16];
  }
  return text;
}

std::pair<std::string, std::string> mark_variable(const std::string& mark) {
  const char* outer = std::getenv(kVariable);
  return {kVariable, outer == nullptr || *outer == '\0' ? mark : std::string(outer) + ":" + mark};
}

std::vector<std::vector<Leftover>> find_leftovers(const std::vector<Family>& families) {
  std::vector<std::vector<Leftover>> found(families.size());
  const int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string pid = it->path().filename();
    if (pid[0] < '1' || pid[0] > '9') continue;
    const ProcessStat stat = stat_of(pid);
    if (!runs(stat)) continue;
    const Leftover one{std::atoi(pid.c_str()), stat.name};
    std::optional<std::string> environment;
    for (size_t i = 0; i < families.size(); ++i) {
      const auto& [group, mark] = families[i];
      if (one.pid == group) continue;
      if (stat.group != group && !mark.empty() && !environment) environment = environment_of(proc, pid.c_str());
      if (stat.group == group || (!mark.empty() && environment->find(mark) != std::string::npos))
        found[i].push_back(one);
    }
  }
  if (proc >= 0) close(proc);
  return found;
}

std::string describe(const std::vector<Leftover>& leftovers) {
  std::string text;
  for (const Leftover& one : leftovers)
    text += (text.empty() ? "" : ", ") + one.name + " (pid " + std::to_string(one.pid) + ")";
  return text;
}

std::vector<int> ended_children() {
  std::ifstream file("/proc/self/task/" + std::to_string(getpid()) + "/children");
  std::vector<int> ended;
  for (int pid = 0; file >> pid;)
    if (stat_of(std::to_string(pid)).state == 'Z') ended.push_back(pid);
  return ended;
}

bool is_running(int pid) { return runs(stat_of(std::to_string(pid))); }

void kill_leftovers(const char* mark) {
  const int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (proc < 0) return;
  for (int pass = 0; pass < kMostPasses && kill_marked(proc, mark) > 0; ++pass) {
  }
  close(proc);
}

}  // namespace trainctl
