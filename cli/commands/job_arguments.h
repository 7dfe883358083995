// JOB.yaml [a.b=c …]: the arguments of all commands that read a job.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/spec/job_text.h"

namespace CLI {
class App;
}

namespace trainctl {

struct JobArguments {
  std::string file;
  std::vector<std::string> overrides;

  /// Adds the arguments. The file is the first word, or the value of `option`.
  void add_to(CLI::App& command, const std::string& option = "JOB.yaml");
  /// Reads and validates the job. Throws SpecError.
  JobSpec load() const;
  /// The same job with more fields set. Standard input is read once.
  JobArguments with(const std::vector<std::string>& more) const;

 private:
  mutable std::shared_ptr<const JobText> text_;  ///< read by the first load()
};

}  // namespace trainctl
