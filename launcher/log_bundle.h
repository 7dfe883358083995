// A whole run in one file, to hand on: what the run folder holds, and about.txt on the host.
#pragma once

#include <cstdint>
#include <string>

#include "launcher/run_directory.h"

namespace trainctl {

/// Writes run-<N>/… as a gzipped tar to `path`, whole or not at all: under another name first. A run that goes on
/// is taken as it is at this moment. `version`: of trainctl. Returns the file's size. Throws EnvError.
int64_t write_bundle(const RunDirectory& run, const std::string& path, const std::string& version);

}  // namespace trainctl
