// The text of `trainctl top`: this host, its runs, and the resource usage of their ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/runtime/cuda/devices.h"
#include "launcher/live_status.h"
#include "launcher/process_usage.h"

namespace trainctl {

struct RankUsage {
  int rank = 0;
  std::string doing;            ///< "training"
  std::optional<double> cores;  ///< number of cores that it keeps busy; nullopt: not known yet, or on another host
  int64_t resident_bytes = 0;
  std::optional<int> gpu;
  std::optional<CudaLoad> gpu_load;
};

struct RunUsage {
  std::string name;  ///< "run 3 (mnist_mlp)"
  LiveStatus status;
  std::vector<RankUsage> ranks;
};

/// Returns at most `height` lines of at most `width` columns; 0: unlimited. Runs share the lines for ranks.
std::string top_text(const HostUsage& host, const std::vector<RunUsage>& runs, size_t width, size_t height);

}  // namespace trainctl
