// Tracks which ranks' processes are stopped, by SIGSTOP or a debugger, and since when.
#include "cli/run/launch/stopped_ranks.h"

#include <cstdint>

namespace trainctl {
namespace {

constexpr double kLookSeconds = 1;

}  // namespace

void StoppedRanks::look(double now) {
  if (looked_ >= 0 && now - looked_ < kLookSeconds) return;
  looked_ = now;
  for (auto& [rank, process] : processes_) {
    if (!is_frozen_(process.pid)) {
      process.stopped_since = -1;
    } else if (process.stopped_since < 0) {
      process.stopped_since = now;
    }
  }
}

void StoppedRanks::describe(std::vector<std::string>& texts, double now) {
  look(now);
  for (const auto& [rank, process] : processes_) {
    if (process.stopped_since < 0) continue;
    const auto seconds = static_cast<int64_t>(now - process.stopped_since);
    texts[static_cast<size_t>(rank)] = "stopped " + std::to_string(seconds) + " s";
  }
}

}  // namespace trainctl
