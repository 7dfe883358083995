// The launcher's side of cli/run/saves/held_states.h: when a rank has failed or a host is lost, takes the newest whole
// state from what the hosts that still answer hold in memory.
//
//   begin ──offers of all hosts──▶ a step that all hold ──▶ fetch the pieces that cover the state ──▶ complete
//                                  none, or no cover: `why`
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/planning/planned_job.h"
#include "engine/runtime/comm/save_board.h"
#include "engine/train/checkpoint/cover.h"
#include "launcher/hosts/agent.h"

namespace trainctl {

class RescuedState {
 public:
  /// `job` must outlive it.
  explicit RescuedState(const PlannedJob& job) : job_(job) {}

  /// `hosts`: the ranks of each host that still answers.
  void begin(const std::vector<std::vector<int>>& hosts);
  bool has_begun() const { return has_begun_; }
  /// Whether a word is for this.
  static bool knows(const hosts::SaveWord& word);
  /// Handles a message from the host that has `ranks`. Returns false if no host may send it.
  bool take(const hosts::SaveWord& word, const std::vector<int>& ranks);
  /// Returns the pending messages for all hosts.
  std::vector<hosts::SaveWord> words();

  /// Whether something is still to come. It grows with what came; nullopt: no.
  std::optional<int64_t> waits() const;
  bool is_complete() const { return is_chosen_ && why_.empty() && to_fetch_.empty(); }
  /// Why it is not; for a line.
  const std::string& why() const { return why_; }

  // Once it is complete.
  int64_t step() const { return step_; }
  const SaveBoard::Position& position() const { return position_; }
  /// By rank, of `num_ranks`: the image of its pieces; empty: nothing is taken from it. Throws EnvError if what came is
  /// none.
  std::vector<std::vector<std::byte>> images(int num_ranks) const;

 private:
  struct Held {
    std::set<int64_t> steps;
    int64_t bytes = 0;
    std::vector<SafetensorsEntry> entries;
    std::vector<std::string> pieces;  ///< to take
    std::vector<std::byte> image;
    bool has_begun = false;
  };
  void choose();

  const PlannedJob& job_;
  bool has_begun_ = false, is_chosen_ = false;
  std::set<int> offering_;  ///< the first ranks of hosts that have not offered all yet
  std::set<int> asked_;     ///< all ranks of these hosts
  std::map<int, Held> held_;
  std::set<int> to_fetch_;
  int64_t step_ = -1, came_ = 0;
  SaveBoard::Position position_;
  std::string why_;
  std::vector<hosts::SaveWord> words_;
};

}  // namespace trainctl
