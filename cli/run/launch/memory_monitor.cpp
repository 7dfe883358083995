// Measures the memory of the ranks of this host, for the live view.
#include "cli/run/launch/memory_monitor.h"

#include <algorithm>

#include "engine/base/error.h"
#include "launcher/process_usage.h"

namespace trainctl {
namespace {

constexpr std::chrono::seconds kEvery{2};

}  // namespace

void MemoryMonitor::look(const std::vector<int>& pids, const std::vector<int>& gpus) {
  const Clock::time_point now = Clock::now();
  if (last_ && now - *last_ < kEvery) return;
  last_ = now;
  resident_ = gpu_ = 0;
  if (std::any_of(pids.begin(), pids.end(), [](int pid) { return pid > 0; })) {
    const std::map<int, ProcessUsage> usage = usage_by_group();
    for (const int pid : pids)
      if (const auto found = usage.find(pid); pid > 0 && found != usage.end())
        resident_ = std::max(resident_, found->second.resident_bytes);
  }
  if (gpus.empty() || !has_monitor_) return;
  try {
    if (!monitor_) monitor_.emplace();
    for (const int gpu : gpus)
      if (const auto load = monitor_->load(gpu)) gpu_ = std::max(gpu_, static_cast<int64_t>(load->used_bytes));
  } catch (const EnvError&) {
    has_monitor_ = false;
  }
}

}  // namespace trainctl
