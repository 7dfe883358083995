// JOB.yaml [a.b=c …]: the arguments of all commands that read a job.
#pragma once

#include <string>
#include <vector>

#include "engine/spec/job_spec.h"

namespace CLI {
class App;
}

namespace trainctl {

struct JobArguments {
  std::string file;
  std::vector<std::string> overrides;

  /// The file is the first word, or that of `option`.
  void add_to(CLI::App& command, const std::string& option = "JOB.yaml");
  /// Reads and validates it. Throws SpecError.
  JobSpec load() const;
};

}  // namespace trainctl
