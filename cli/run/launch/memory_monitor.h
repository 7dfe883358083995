// Measures the memory of the ranks of this host, for the live view.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/runtime/cuda/devices.h"

namespace trainctl {

class MemoryMonitor {
 public:
  /// Samples again if the last sample is old enough, since each reads /proc. `pids`: by rank, the leader of its process
  /// group; 0: not on this host. `gpus`: as the driver numbers them.
  void look(const std::vector<int>& pids, const std::vector<int>& gpus);

  int64_t resident_bytes() const { return resident_; }  ///< memory of the largest rank
  int64_t gpu_bytes() const { return gpu_; }            ///< used memory of the fullest GPU

 private:
  using Clock = std::chrono::steady_clock;

  std::optional<Clock::time_point> last_;
  int64_t resident_ = 0, gpu_ = 0;
  std::optional<CudaMonitor> monitor_;
  bool has_monitor_ = true;  ///< false once it reports that there is no driver
};

}  // namespace trainctl
