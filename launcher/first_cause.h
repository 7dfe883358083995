// Finds the one first cause in a cascade of failures: which rank failed on its own, and which only followed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/supervision.h"

namespace trainctl {

struct Cause {
  enum class Kind {
    none,         ///< nothing failed
    failed,       ///< died, or reported an error
    ended_early,  ///< exited 0 while others waited for it
    silent,       ///< other ranks or the launcher waited for it in vain
  } kind = Kind::none;
  int rank = -1;
  int complaining_rank = -1;  ///< ended_early, silent: the rank that reported it; -1: the launcher
};

/// "failed", "ended early", "silent".
std::string_view to_string(Cause::Kind kind);

/// In this order:
///   1. a rank's own failure (a signal that we did not send, an exit code, an error that is not about another rank),
///      the earliest first
///   2. the rank that the launcher found silent
///   3. the rank at the end of a chain of complaints "a waits for b, b waits for c". If a waits for several ranks, one
///      that is frozen or does not wait itself is preferred. In a circle: the rank furthest in its program
Cause find_first_cause(const std::vector<RankReport>& reports);

}  // namespace trainctl
