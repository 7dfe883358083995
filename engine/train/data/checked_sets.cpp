// The data sets of a job whose samples are checked before a run.
#include "engine/train/data/checked_sets.h"

#include <algorithm>

#include "engine/base/url.h"
#include "engine/train/data/mixed_set.h"

namespace trainctl {

std::vector<CheckedSet> checked_sets(const DatasetSpec& spec, uint64_t seed, const std::string& section) {
  if (!spec.is_mix()) return {{spec, seed, section}};
  std::vector<CheckedSet> sets;
  for (const DatasetSpec& source : spec.sources)
    sets.push_back({source, source_seed(seed, source.name), section + ".sources." + source.name});
  return sets;
}

bool is_of_files(const DatasetSpec& set) {
  return set.type == "mnist" || set.has_source() || set.has_class_texts() || set.type == "preference";
}

bool reads_store(const DatasetSpec& set) {
  return std::any_of(set.paths.begin(), set.paths.end(), is_url) ||
         std::any_of(set.sources.begin(), set.sources.end(), reads_store);
}

bool has_own_samples(const PlannedJob& job) {
  if (!job.validation) return false;
  if (job.validation->set.is_mix()) return true;
  return job.validation->set.has_tokens() || is_of_files(job.validation->set);
}

}  // namespace trainctl
