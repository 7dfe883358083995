// The launcher's side of cli/run/saves/host_snapshots.h: after a rank has failed or a host is lost, recovers the newest
// whole state from the memory of the hosts that still respond.
//
//   begin ──offers of all hosts──▶ a step that all have ──▶ fetch the pieces that cover the state ──▶ complete
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

  /// Starts recovery. `hosts`: the ranks of each host that still responds.
  void begin(const std::vector<std::vector<int>>& hosts);
  bool has_begun() const { return has_begun_; }
  /// Returns whether a message belongs to this protocol.
  static bool knows(const hosts::SaveMessage& message);
  /// Handles a message from the host that has `ranks`. Returns false if no host may send it.
  bool take(const hosts::SaveMessage& message, const std::vector<int>& ranks);
  /// Returns the pending messages for all hosts.
  std::vector<hosts::SaveMessage> messages();

  /// Progress: a number that grows with what is received; nullopt: nothing more is expected.
  std::optional<int64_t> waits() const;
  bool is_complete() const { return is_chosen_ && why_.empty() && to_fetch_.empty(); }
  /// Returns the reason why the state is not complete, as text for a line.
  const std::string& why() const { return why_; }

  // The following functions may be called once the state is complete.
  int64_t step() const { return step_; }
  const SaveBoard::Position& position() const { return position_; }
  /// Returns, for each of the `num_ranks` ranks, the image of the pieces that are taken from it; empty if nothing is
  /// taken from it. Throws EnvError if the received data is not a valid image.
  std::vector<std::vector<std::byte>> images(int num_ranks) const;

 private:
  struct RankSnapshot {
    std::set<int64_t> steps;
    int64_t bytes = 0;
    std::vector<SafetensorsEntry> entries;
    std::vector<std::string> pieces;  ///< pieces to fetch
    std::vector<std::byte> image;
    bool has_begun = false;
  };
  void choose();

  const PlannedJob& job_;
  bool has_begun_ = false, is_chosen_ = false;
  std::set<int> offering_;  ///< the first ranks of hosts whose offers are not complete
  std::set<int> asked_;     ///< all ranks of these hosts
  std::map<int, RankSnapshot> snapshots_;
  std::set<int> to_fetch_;
  int64_t step_ = -1, received_bytes_ = 0;
  SaveBoard::Position position_;
  std::string why_;
  std::vector<hosts::SaveMessage> messages_;
};

}  // namespace trainctl
