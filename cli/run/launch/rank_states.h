// Describes in a few words what each rank of a network does: "training", or, if it stands still, where, and for which
// ranks it waits.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/compile/rank_classes.h"
#include "engine/runtime/comm/rank_board.h"
#include "launcher/rank_names.h"

namespace trainctl {

class RankStates {
 public:
  /// `classes` must outlive it.
  explicit RankStates(const RankClasses& classes)
      : classes_(&classes), seen_(classes.class_of.size()), waits_(classes.class_of.size()) {}

  /// One text per rank. `now` is in seconds of any steady clock. The text for a rank that has not moved for a second is
  /// "in fc1.matmul", or "waiting in all_reduce grad.0 for 3" with the ranks of its group that have not arrived.
  std::vector<std::string> describe(const RankBoard& memory, double now);

  /// The rank that `describe` has lately found in a collective or a recv much more rarely than another: that one waits
  /// for it. Nothing if they share the time alike.
  std::optional<int> slowest() const;

 private:
  struct Position {
    uint32_t step = 0;
    int32_t instruction = -1;
    friend bool operator==(const Position&, const Position&) = default;
  };
  struct Seen {
    Position position;
    double since = 0;
  };

  RankNames names() const;
  static Position position_of(const RankBoard& memory, int rank);
  bool is_in_call(const RankBoard& memory, int rank) const;
  std::string describe_rank(const RankBoard& memory, int rank, double now);
  std::vector<int> awaited(const RankBoard& memory, int rank, const Position& at) const;

  const RankClasses* classes_;
  std::vector<Seen> seen_;
  std::vector<double> waits_;  ///< by rank: the share of the last looks that found it in a collective or recv
};

}  // namespace trainctl
