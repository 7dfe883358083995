// A whole run in one file to pass on: the contents of the run folder, and about.txt on the host.
#pragma once

#include <cstdint>
#include <string>

#include "launcher/run_directory.h"

namespace trainctl {

/// Writes run-<N>/… as a gzipped tar to `path`, atomically. A run in progress is packed as it is at this moment.
/// `version`: of trainctl. Returns the file's size. Throws EnvError.
int64_t write_bundle(const RunDirectory& run, const std::string& path, const std::string& version);

}  // namespace trainctl
