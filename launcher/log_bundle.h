// Packs a whole run into one file for sharing: the contents of the run folder, and about.txt about the host.
#pragma once

#include <cstdint>
#include <string>

#include "launcher/run_directory.h"

namespace trainctl {

/// Writes run-<N>/… as a gzipped tar to `path`, atomically. An active run is packed in its current state. `version`: of
/// trainctl. Returns the size of the file. Throws EnvError.
int64_t write_bundle(const RunDirectory& run, const std::string& path, const std::string& version);

}  // namespace trainctl
