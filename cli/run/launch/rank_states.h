// Describes the state of each rank of a network in a few words: "training", or, if it makes no progress, where it is
// and which ranks it waits for.
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

  /// The rank that `describe` has recently found waiting in a collective or recv much less often than another rank,
  /// which therefore waits for it. Nothing if all wait about equally often.
  std::optional<int> slowest() const;

  /// Samples where ranks that all train are. Call it often.
  void sample(const RankBoard& memory, double now);
  /// By rank, the fraction of the samples in which it was not in a collective or recv, over a window of many steps that
  /// has just ended; each window is returned once. Empty: there is none.
  std::vector<double> take_window(double seconds);

 private:
  /// Samples since `since`.
  struct Window {
    double since = 0, last = 0;
    uint32_t first_step = 0, last_step = 0;
    int64_t samples = 0;
    std::vector<int64_t> busy;  ///< by rank
  };
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
  Window window_;
  std::vector<double> waits_;  ///< by rank: fraction of recent samples that found it in a collective or recv
};

}  // namespace trainctl
