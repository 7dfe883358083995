// Reads the error that a failed rank wrote about its failure.
#pragma once

#include <optional>

#include "launcher/rank_error.h"
#include "launcher/run_directory.h"

namespace trainctl {

struct ReportedError {
  std::optional<RankError> error;
  bool disk_hangs = false;  ///< the disk of the run's folder did not respond
};

/// Reads the rank's error.json if `ranks_explain` (Supervision::Limits), else its kTorchErrorFile. Waits up to two
/// seconds for the disk.
ReportedError reported_error(const RunDirectory& directory, int rank, bool ranks_explain);

}  // namespace trainctl
