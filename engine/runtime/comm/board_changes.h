// The statuses of a RankBoard as bytes, from one host to another. Both run the same binary.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/runtime/comm/rank_board.h"

namespace trainctl {

/// Changes in the statuses of some ranks of a board.
class BoardChanges {
 public:
  /// `board` must outlive it.
  BoardChanges(const RankBoard& board, std::vector<int> ranks);

  /// The statuses that differ from those of the last call; empty: none does.
  std::string take();

 private:
  const RankBoard& board_;
  const std::vector<int> ranks_;
  std::vector<std::string> seen_;  ///< by index of ranks_
};

/// Writes them to another board. The pid stays 0, since it means nothing on another host; a rank that has failed here
/// stays failed. Returns false, and writes nothing, if the bytes are not such statuses or belong to a rank that is not
/// in `ranks`.
bool apply_changes(std::string_view changes, const std::vector<int>& ranks, const RankBoard& board);

}  // namespace trainctl
