// When each buffer holds something, in instruction indices.
#pragma once

#include <vector>

#include "engine/compile/compiler.h"

namespace trainctl {

/// From the first write to the last use, both included. A send uses its buffer until the instruction that
/// waits for it; what is launched as one uses its buffers all the time.
struct Lifetime {
  int first = -1, last = -1;  ///< -1: never used
  bool overlaps(const Lifetime& other) const { return first <= other.last && other.first <= last; }
};

std::vector<Lifetime> lifetimes(const Compiler& c);

}  // namespace trainctl
