// The data sets of a job whose samples are checked before a run: the training set and the validation set, or the
// sources of mixtures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/planning/planned_job.h"

namespace trainctl {

struct CheckedSet {
  const DatasetSpec& spec;
  uint64_t seed = 0;
  std::string section;  ///< section of the job: "dataset", "validation.dataset" or "dataset.sources.NAME"
};

/// Returns the set itself, or the sources of a mixture. `spec` must outlive them.
std::vector<CheckedSet> checked_sets(const DatasetSpec& spec, uint64_t seed, const std::string& section);

/// True if the set's samples are read from files.
bool is_of_files(const DatasetSpec& set);
/// True if a path of the set, or of a source of a mixture, is in an object store.
bool reads_store(const DatasetSpec& set);

/// True if the job's validation must be checked too, because it reads files of its own. Generated sets need no second
/// check: they draw the samples of the validation from the same range as those of the training.
bool has_own_samples(const PlannedJob& job);

}  // namespace trainctl
