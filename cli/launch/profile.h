// `run --profile`, after the ranks have ended: one trace of all of them, and what it says in short.
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

/// Reads the ranks' traces, writes one of all that left any, and returns the summary with the place of the trace.
/// Says why where there is none. Throws EnvError.
std::string collect_profile(const ProfileOptions& options, const std::vector<Program>& programs, const std::string& job,
                            const RunDirectory& directory);

}  // namespace trainctl
