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
    ended_early,  ///< exited 0 while others waited for it, or may have waited for it
    silent,       ///< other ranks or the launcher waited for it without success
    link,         ///< it lost another rank because two hosts cannot connect: RankReport::lost_link
  } kind = Kind::none;
  int rank = -1;
  int complaining_rank = -1;  ///< ended_early, silent: the rank that reported it; -1: inferred by the launcher
};

/// "failed", "ended early", "silent", "link".
std::string_view to_string(Cause::Kind kind);

/// In this order:
///   1. a rank's own failure (a signal that we did not send, an exit code, an error that is not about another rank),
///      the earliest first
///   2. a broken link between two hosts
///   3. the rank that the launcher found silent
///   4. the rank at the end of a chain of complaints "a waits for b, b waits for c". If a waits for several ranks, one
///      that is frozen or does not wait itself is preferred. In a circle: the rank furthest in its program
///
/// If ranks do not explain their failures (Supervision::Limits), in this order:
///   1. a rank killed by a signal that we did not send, or whose error is not about another rank: the earliest
///   2. a broken link between two hosts
///   3. a rank whose process is stopped, by SIGSTOP or a debugger
///   4. if some ranks blame others: the earliest that failed and does not
///   5. the only rank that still ran when all others had failed; or the first that had ended with 0 before, if those
///      that failed are more
///   6. the earliest that failed
Cause find_first_cause(const std::vector<RankReport>& reports);

/// Records how the ranks of a program that does not explain its failures ended, each list in order of time.
struct Course {
  std::vector<int> failed;   ///< on their own, before the launcher stopped the others
  std::vector<int> ended;    ///< with 0, before the first failure
  std::vector<int> running;  ///< until the launcher stopped them
  double first_failure = 0;  ///< unix seconds
};
Course course_of(const std::vector<RankReport>& reports);

/// Returns when the rank failed, from its own error report if there is one. Unix seconds.
double failure_time(const RankReport& report);

}  // namespace trainctl
