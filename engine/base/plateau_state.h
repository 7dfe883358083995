// The state of a learning rate that falls when validations stop improving (optimizer.learning_rate: plateau).
#pragma once

#include <cstdint>

namespace trainctl {

struct PlateauState {
  double scale = 1;         ///< product of all reductions
  double best = 0;          ///< best value that counted
  int64_t validations = 0;  ///< validations that were judged; 0: `best` has no value
  int64_t worse = 0;        ///< validations since `best`, without those of a cooldown
  int64_t cooldown = 0;     ///< validations that are not counted yet

  friend bool operator==(const PlateauState&, const PlateauState&) = default;
};

}  // namespace trainctl
