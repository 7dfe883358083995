// Computes the time for which each span of a profile waited for other ranks. Needs the profiles of all ranks: a
// collective waits until the last rank of its group has come, a recv until its send has been issued.
#pragma once

#include <span>
#include <vector>

#include "engine/train/profile/step_profile.h"

namespace trainctl {

/// A message, from a span of one rank to a span of another.
struct Message {
  size_t from_rank, from_span, to_rank, to_span;  ///< indices into the profiles and their spans
};

struct Waiting {
  /// Nanoseconds from begin_ns on, by profile and span; 0 if it does not communicate or peers' profiles are missing.
  std::vector<std::vector<int64_t>> waited_ns;
  std::vector<Message> messages;
};

/// `profiles` of some or all ranks, in rank order.
Waiting find_waiting(std::span<const RankProfile> profiles);

}  // namespace trainctl
