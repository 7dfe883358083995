// One first cause among the cascade: which rank failed by itself, and which only followed.
#pragma once

#include <string>
#include <vector>

#include "launcher/supervision.h"

namespace trainctl {

struct Cause {
  enum class Kind {
    none,         ///< nothing failed
    failed,       ///< died, or said what was wrong
    ended_early,  ///< exited 0 while others waited for it
    silent,       ///< others waited for it in vain
  } kind = Kind::none;
  int rank = -1;
  int complaining_rank = -1;  ///< ended_early, silent: who says so
};

/// Own failures (a signal that we did not send, an exit code, an error that is not about another rank)
/// come before complaints, the earliest first. Where there are only complaints, the rank at the end of
/// "a waits for b, b waits for c" is the cause.
Cause find_first_cause(const std::vector<RankReport>& reports);

}  // namespace trainctl
