// A job as given by the user: a file, and fields that override those of the file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/spec/job_text.h"

namespace trainctl {

struct JobFile {
  std::string file;                    ///< "-": standard input
  std::vector<std::string> overrides;  ///< "launch.ranks=4"

  /// Reads and validates the job. Throws SpecError.
  JobSpec load() const;
  /// The same job with more fields set. Standard input is read once.
  JobFile with(const std::vector<std::string>& more) const;

 private:
  mutable std::shared_ptr<const JobText> text_;  ///< read by the first load()
};

}  // namespace trainctl
