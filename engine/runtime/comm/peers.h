// Tells which ranks a blocked call waits for, where each of them is, and when waiting has become hopeless.
#pragma once

#include <string>
#include <vector>

#include "engine/runtime/comm/rank_board.h"
#include "engine/runtime/communicator.h"

namespace trainctl::comm {

/// "it is at step 411, instruction 881", "it is still loading", "it has failed".
std::string where_is(RankState state, RankPosition position);

/// "{0,4}".
std::string format_ranks(const std::vector<int>& ranks);

/// A rank that others wait for, and where it was last seen.
struct MissingRank {
  int rank;
  std::string where;  ///< in the words of where_is()
};

/// "all_reduce over ranks {1,5} timed out after 30 s at step 412; rank 1 has not arrived: it is at step 411, …".
/// `event` is what ended the call: "timed out after 30 s".
CommError blocked_call(const std::string& call, const std::string& event, RankPosition mine,
                       const std::vector<MissingRank>& missing);

/// The ranks of one segment, as one of them sees them. Allocates only to report.
class Peers {
 public:
  /// The first `own_workers` ranks may end without ending the others: their loss fails only calls that wait for them.
  Peers(const RankBoard& memory, int rank, double timeout_seconds, int own_workers = 0)
      : memory_(memory), rank_(rank), timeout_seconds_(timeout_seconds), own_workers_(own_workers) {}

  /// A rank with is_missing(rank) that has failed, has finished, or whose process is gone;
  /// -1: none.
  template <typename IsMissing>
  int lost_rank(const IsMissing& is_missing) const {
    for (int other = 0; other < memory_.num_ranks(); ++other) {
      if (other == rank_ || (other < own_workers_ && !is_missing(other))) continue;
      if (is_gone(other) || (is_done(other) && is_missing(other))) return other;
    }
    return -1;
  }
  bool too_late(double seconds) const { return seconds >= timeout_seconds_; }

  /// The error for a call that cannot end because of `lost` or, if that is -1, because of `missing`.
  CommError give_up(const std::string& call, int lost, const std::vector<int>& missing) const;

 private:
  bool is_gone(int rank) const;
  bool is_done(int rank) const;
  std::string describe(int rank) const;
  RankPosition position(int rank) const;

  const RankBoard& memory_;
  int rank_;
  double timeout_seconds_;
  int own_workers_;
};

}  // namespace trainctl::comm
