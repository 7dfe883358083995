// What a run remembers of its validations.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trainctl {

/// The best value of a metric.
struct BestValue {
  double value = 0;   ///< nan: all were
  int64_t step = 0;   ///< steps that had been trained then; 0: there was no validation
  int64_t since = 0;  ///< validations after it
};

/// By metric, in the order of ValidationReport::values.
using BestValues = std::vector<std::pair<std::string, BestValue>>;

}  // namespace trainctl
