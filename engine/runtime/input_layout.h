// Where a step's data lies in host memory: one block that holds what all `load` instructions take.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compile/program.h"

namespace trainctl {

struct InputLayout {
  static constexpr int64_t kAlignment = 64;

  int64_t bytes = 0;             ///< of the block, a multiple of kAlignment; 0: nothing is loaded
  std::vector<int64_t> offsets;  ///< by instruction: of a load's data in the block; -1 of all others
};

/// Loads of the same part of the same micro-batch (a recomputed layer's) share their place.
InputLayout input_layout(const Program& program);

}  // namespace trainctl
