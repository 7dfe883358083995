// Chooses trials from the results of earlier ones: the tree-structured Parzen estimator (Bergstra et al. 2011). The
// best quarter of the results and the others each give a density per field; the next value is the candidate, drawn from
// the density of the best, for which the ratio of the two is highest.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/sweep/swept_field.h"

namespace trainctl {

/// A trial that has ended.
struct Observation {
  TrialFields fields;
  double badness = 0;  ///< lower is better; infinite: it failed
};

/// Trials that are drawn at random before any is chosen.
inline constexpr size_t kFirstTrials = 10;

/// Trial `number`, counted from 0: a function of its arguments. The first ones are those of random_trials.
TrialFields choose_trial(const std::vector<SweptField>& fields, const std::vector<Observation>& ended, uint64_t seed,
                         size_t number);

}  // namespace trainctl
