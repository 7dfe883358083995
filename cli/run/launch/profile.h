// `run --profile`: after the ranks have ended, writes one trace of all ranks and its summary.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/machine/machine.h"
#include "engine/runtime/cuda/devices.h"
#include "engine/train/profile/step_profile.h"
#include "launcher/run_directory.h"

namespace trainctl {

struct ProfileOptions {
  std::string file;  ///< the trace of all ranks; empty: trace.json in the run's folder
  ProfileSteps steps;
};

/// Samples the load of the first rank's GPU during and after the profiled steps; the median counts.
class GpuWatch {
 public:
  explicit GpuWatch(int index) : index_(index) {}
  void look();
  std::optional<CudaLoad> middle() const;

 private:
  const int index_;
  const CudaMonitor monitor_;
  std::vector<CudaLoad> seen_;
};

/// Reads the ranks' traces, writes the joined one and profile.json, and returns the summary with the trace's path, or
/// the reason why there is no profile. Limits are those of `machine`. Throws EnvError.
std::string collect_profile(const ProfileOptions& options, const std::vector<Program>& programs, const std::string& job,
                            const RunDirectory& directory, const Machine& machine, const std::optional<CudaLoad>& load);

}  // namespace trainctl
