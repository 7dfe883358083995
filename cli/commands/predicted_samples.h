// The samples that the user gives to `trainctl predict`.
#pragma once

#include <string>
#include <vector>

#include "engine/spec/job_spec.h"

namespace trainctl {

struct PredictedWords {
  std::vector<std::string> files;      ///< files, folders and globs
  std::vector<std::string> overrides;  ///< "launch.ranks=4"
};

/// A word with '=' is an override unless a file has that name.
PredictedWords split_words(const std::vector<std::string>& words);

/// The job with a validation of these files, which have no labels. The training set need not be there, except for
/// arrays and tables with words. Throws SpecError if the job's data set has no files of single samples.
JobSpec with_samples(JobSpec spec, const std::vector<std::string>& files);

}  // namespace trainctl
