// Notes on the samples of a job for the output of `trainctl plan` and `trainctl check`.
#pragma once

#include <string>
#include <vector>

#include "engine/planning/planned_job.h"

namespace trainctl {

/// Notes on the shares of a mixture's sources, and on documents and pairs of the training and the validation set that
/// train nothing, each with the place of the first one. Throws the same errors as open_dataset.
std::vector<std::string> notes_on_samples(const PlannedJob& job);

}  // namespace trainctl
