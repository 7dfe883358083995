// Looks for classes and tokens in a data set that the network has no row for, before a run meets them.
#pragma once

#include "engine/train/job.h"

namespace trainctl {

/// Throws a SpecError for each tensor of the data set with an integer that is out of range where the network uses it
/// as an index. Reads the labels of the set, and its samples only where they are indices; throws as open_dataset.
void require_indices_in_range(const PlannedJob& job);

}  // namespace trainctl
