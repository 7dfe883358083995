// Reads /proc/meminfo.
#include "cli/run/worker/host_memory.h"

#include <fmt/format.h>

#include <fstream>
#include <limits>
#include <string>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
// MemAvailable plus SwapFree; unlimited if the kernel does not report them.
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

void require_memory(const std::vector<int64_t>& arena_bytes_per_rank, int64_t data_bytes_per_rank,
                    const SourcePos& data_set) {
  int64_t needed = 0;
  for (const int64_t bytes : arena_bytes_per_rank) needed = capped_sum(needed, bytes);
  const auto ranks = static_cast<int64_t>(arena_bytes_per_rank.size());
  const int64_t available = available_memory(), data_bytes = capped_product(ranks, data_bytes_per_rank);
  if (data_bytes > available) {
    throw EnvError(fmt::format(
        "{}:{}:{}: dataset: {} ranks keep {} of the data set each, but this host has only {} available; use fewer "
        "samples or fewer ranks",
        data_set.file, data_set.line, data_set.column, ranks, format_bytes(data_bytes_per_rank),
        format_bytes(available)));
  }
  needed = capped_sum(needed, data_bytes);
  if (needed <= available) return;
  throw EnvError(std::to_string(arena_bytes_per_rank.size()) + " ranks need " + format_bytes(needed) +
                 " in total, but this host has only " + format_bytes(available) +
                 " available; trainctl plan shows what uses it. Try more parallel.micro_batches, "
                 "parallel.optimizer_shard, or a smaller dataset.batch");
}

}  // namespace trainctl
