// The best values among a run's validations.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trainctl {

/// The best value of a metric.
struct BestValue {
  double value = 0;   ///< NaN: the metric was NaN at every validation
  int64_t step = 0;   ///< steps trained when it was reached; 0: there was no validation
  int64_t since = 0;  ///< number of validations after it
};

/// By metric, in the order of ValidationReport::values.
using BestValues = std::vector<std::pair<std::string, BestValue>>;

}  // namespace trainctl
