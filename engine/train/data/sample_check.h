// Finds faults in the samples of a job's sets before a run does.
#pragma once

#include <cstdint>

#include "engine/planning/planned_job.h"

namespace trainctl {

/// Reads the files with checksums of the training set and the validation set to their end (check_files). Throws
/// SpecError if one is damaged.
void require_intact_files(const PlannedJob& job);

/// Throws a SpecError with an entry for each of:
///  - a tensor of the training or the validation set with an integer that is out of range where the network uses it as
///    an index (a class, a token). Reads the labels of the set, and its samples only where they are indices;
///  - a sample that cannot be read: in the validation set, which a run would read only after its first epoch, or in all
///  sets. Reads all samples of small sets, and a part of large ones that is spread over the set. dataset.on_error:
///    skip allows them.
/// Throws the same errors as open_dataset.
enum class ReadSamples : uint8_t { validation, all };
void require_sound_samples(const PlannedJob& job, ReadSamples read = ReadSamples::validation);

}  // namespace trainctl
