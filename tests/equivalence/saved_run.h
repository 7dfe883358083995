// A run whose state is saved, as workers and writer do it, and runs that resume from there.
#pragma once

#include <string>

#include "tests/equivalence/harness.h"

namespace trainctl {

/// A run that is saved before step `at`, as workers and writer do it.
struct SavedRun {
  RunResult result;
  std::string path;  ///< path of the checkpoint
};
SavedRun run_and_save(PlannedJob job, int64_t at, const std::string& folder);

/// Resumes from the checkpoint at `path`. No rank may read much more than its own shards.
RunResult resume(PlannedJob job, const std::string& path);

bool same_weights(const RunResult& a, const RunResult& b);

}  // namespace trainctl
