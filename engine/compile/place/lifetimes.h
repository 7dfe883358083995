// The lifetime of each buffer, in instruction indices.
#pragma once

#include <vector>

#include "engine/compile/compiler.h"

namespace trainctl {

/// From the first write to the last use, inclusive. A send uses its buffer until the instruction that waits for the
/// send; all instructions of a launch use their buffers for the whole launch. VirtualBuffer::lasts_until counts too.
struct Lifetime {
  int first = -1, last = -1;  ///< -1: never used
  bool overlaps(const Lifetime& other) const { return first <= other.last && other.first <= last; }
};

std::vector<Lifetime> lifetimes(const Compiler& c);

}  // namespace trainctl
