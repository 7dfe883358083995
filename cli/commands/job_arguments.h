// JOB.yaml [a.b=c …]: the arguments of all commands that read a job.
#pragma once

#include <string>

#include "cli/run/job_file.h"

namespace CLI {
class App;
}

namespace trainctl {

struct JobArguments : JobFile {
  /// Adds the arguments. The file is the first word, or the value of `option`.
  void add_to(CLI::App& command, const std::string& option = "JOB.yaml");
};

}  // namespace trainctl
