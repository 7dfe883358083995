// Copying what outlives a step aside while the next steps run, for checkpoints.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compile/program.h"

namespace trainctl {

/// `bytes` of the arena from `offset` on, to `to` bytes from the start of the copy.
struct StateCopy {
  int64_t offset = 0;
  int64_t to = 0;
  int64_t bytes = 0;
};

/// By copy: the first instruction that writes any of it; the number of instructions if none does.
std::vector<int> first_writers(const Program& program, const std::vector<StateCopy>& copies);

}  // namespace trainctl
