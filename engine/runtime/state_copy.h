// Copies of the state (weights, optimizer state, statistics), made for checkpoints while the next steps run.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compile/program.h"

namespace trainctl {

/// A range of the arena, [offset, offset + bytes), that is copied to offset `to` of the copy.
struct StateCopy {
  int64_t offset = 0;
  int64_t to = 0;
  int64_t bytes = 0;
};

/// Returns for each range the first instruction of a step that writes to it, before which it must have been copied; the
/// number of instructions if none writes to it.
std::vector<int> first_writers(const Program& program, const std::vector<StateCopy>& copies);

}  // namespace trainctl
