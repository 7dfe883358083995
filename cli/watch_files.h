// Ends a command that reads a job's data set if the file system stops responding.
#pragma once

#include <memory>

#include "engine/base/file_wait.h"

namespace trainctl {

/// While it lives, a file that is not opened or read within launch.timeout ends the process with an error that names
/// it.
std::unique_ptr<FileWatch> watch_files(double timeout_seconds);

}  // namespace trainctl
