// `run --profile`, after the ranks have ended: one trace of all ranks, and its summary.
#pragma once

#include <string>
#include <vector>

#include "engine/train/profile/step_profile.h"
#include "launcher/run_directory.h"

namespace trainctl {

struct ProfileOptions {
  std::string file;  ///< the trace of all ranks; empty: trace.json in the run's folder
  ProfileSteps steps;
};

/// Reads the ranks' traces, writes the joined one, and returns the summary with the trace's path, or the reason why
/// there is no profile. Throws EnvError.
std::string collect_profile(const ProfileOptions& options, const std::vector<Program>& programs, const std::string& job,
                            const RunDirectory& directory);

}  // namespace trainctl
