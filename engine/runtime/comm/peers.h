// Says which ranks a blocked call waits for and where each is, and when waiting has become hopeless.
#pragma once

#include <string>
#include <vector>

#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/communicator.h"

namespace trainctl::comm {

/// "it is at step 411, instruction 881", "it is still loading", "it has failed".
std::string where_is(RankState state, RankPosition position);

/// "{0,4}".
std::string format_ranks(const std::vector<int>& ranks);

/// What a rank that waits knows of one that it waits for.
struct MissingRank {
  int rank;
  std::string where;  ///< as where_is says it
};

/// "all_reduce over ranks {1,5} timed out after 30 s at step 412; rank 1 has not arrived: it is at step 411, …".
/// `event` is what ended the call: "timed out after 30 s".
CommError blocked_call(const std::string& call, const std::string& event, RankPosition mine,
                       const std::vector<MissingRank>& missing);

/// The ranks of one segment as one of them sees them. Allocates nothing but to report.
class Peers {
 public:
  Peers(const SharedMemory& memory, int rank, double timeout_seconds)
      : memory_(memory), rank_(rank), timeout_seconds_(timeout_seconds) {}

  /// A rank that has failed, whose process is gone or that has finished while
  /// is_missing(rank); -1: none.
  template <typename IsMissing>
  int lost_rank(const IsMissing& is_missing) const {
    for (int other = 0; other < memory_.num_ranks(); ++other) {
      if (other == rank_) continue;
      if (is_gone(other) || (is_done(other) && is_missing(other))) return other;
    }
    return -1;
  }
  bool too_late(double seconds) const { return seconds >= timeout_seconds_; }

  /// The error for a call that cannot end because of `lost`, or where that is -1, because of `missing`.
  CommError give_up(const std::string& call, int lost, const std::vector<int>& missing) const;

 private:
  bool is_gone(int rank) const;
  bool is_done(int rank) const;
  std::string describe(int rank) const;
  RankPosition position(int rank) const;

  const SharedMemory& memory_;
  int rank_;
  double timeout_seconds_;
};

}  // namespace trainctl::comm
