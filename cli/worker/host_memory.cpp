// Reads /proc/meminfo.
#include "cli/worker/host_memory.h"

#include <fstream>
#include <limits>
#include <numeric>
#include <string>

#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
// MemAvailable and SwapFree; unlimited if the kernel does not report them.
int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  int64_t kilobytes = 0, total = 0;
  bool found = false;
  while (file >> name >> kilobytes) {
    if (name == "MemAvailable:" || name == "SwapFree:") total += kilobytes * 1024;
    found = found || name == "MemAvailable:";
    std::getline(file, unit);
  }
  return found ? total : std::numeric_limits<int64_t>::max();
}

void require_memory(const std::vector<int64_t>& arena_bytes_per_rank) {
  const int64_t needed = std::accumulate(arena_bytes_per_rank.begin(), arena_bytes_per_rank.end(), int64_t{0});
  const int64_t available = available_memory();
  if (needed <= available) return;
  throw EnvError(std::to_string(arena_bytes_per_rank.size()) + " ranks need " + format_bytes(needed) +
                 " together, this host has " + format_bytes(available) +
                 " left; see trainctl plan for what takes it, and try more parallel.micro_batches, "
                 "parallel.optimizer_shard or a smaller dataset.batch");
}

}  // namespace trainctl
