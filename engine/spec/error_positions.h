// Adds positions in the job file to errors that were found after the file was read.
#pragma once

#include "engine/base/error.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// The same error, with a position for each field that had none.
SpecError with_positions(const SpecError& error, const JobSpec& spec);

/// The same for an error of the validation set: readers of data sets name fields of `dataset`, which are fields of
/// `validation.dataset` here.
SpecError with_validation_positions(const SpecError& error, const JobSpec& spec);

}  // namespace trainctl
