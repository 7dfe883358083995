// Jobs whose ranks run a line of shell.
#pragma once

#include <fstream>
#include <string>

#include "tests/launcher/scratch.h"

namespace trainctl {

/// Writes job.yaml, a job that runs a line of shell once per rank.
inline void shell_job(const Scratch& scratch, const std::string& line, const std::string& more = "launch: {ranks: 3}\n") {
  std::ofstream(scratch.path() + "/job.yaml") << "name: shell\ncommand:\n  - sh\n  - -c\n  - |\n    " << line << "\n"
                                              << more;
}

}  // namespace trainctl
