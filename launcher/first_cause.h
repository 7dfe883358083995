// One first cause among the cascade: which rank failed by itself, and which only followed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/supervision.h"

namespace trainctl {

struct Cause {
  enum class Kind {
    none,         ///< nothing failed
    failed,       ///< died, or said what was wrong
    ended_early,  ///< exited 0 while others waited for it
    silent,       ///< others waited for it in vain, or the launcher did
  } kind = Kind::none;
  int rank = -1;
  int complaining_rank = -1;  ///< ended_early, silent: who says so; -1: the launcher
};

/// "failed", "ended early", "silent".
std::string_view to_string(Cause::Kind kind);

/// Own failures (a signal that we did not send, an exit code, an error that is not about another rank)
/// come before all else, the earliest first; then the rank that the launcher found silent. Where there are only
/// complaints, the rank at the end of "a waits for b, b waits for c" is the cause; among several that a rank waits
/// for, rather one that is frozen or that does not wait itself. Of ranks that wait for each other in a circle it is the
/// one that is furthest in its program.
Cause find_first_cause(const std::vector<RankReport>& reports);

}  // namespace trainctl
