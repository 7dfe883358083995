// Snapshots of the state in the memory of a host (cli/run/saves/state_snapshots.h). When a host is lost, the launcher
// fetches them from the remaining hosts. Launcher and hosts exchange these messages, in order:
//
//   launcher ──▶ host   offer
//   host ──▶ launcher   snapshot        rank; number: a step; the rank has the complete state before it (at most two)
//                       head            rank; number: the size of its image in bytes; text: the head of the image
//                       offered         rank: the host's first rank           the offer is complete
//   launcher ──▶ host   fetch           rank; number: the step
//   host ──▶ launcher   snapshot_begin  rank; number: the step; text: SaveBoard::Position
//                       snapshot_part   rank; number: offset; text: bytes
//                       snapshot_end    rank                                  the whole image has been sent
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "cli/run/saves/state_snapshots.h"
#include "launcher/hosts/agent.h"

namespace trainctl {

/// A host's side.
class HostSnapshots {
 public:
  /// Makes memory for each of the host's ranks. Throws EnvError.
  explicit HostSnapshots(const std::vector<int>& ranks);
  ~HostSnapshots();
  HostSnapshots(const HostSnapshots&) = delete;
  HostSnapshots& operator=(const HostSnapshots&) = delete;

  /// A memfd that the rank sizes and fills.
  int memory(int rank) const { return memories_.at(rank); }
  /// The next message for the launcher; nullopt: none now.
  std::optional<hosts::SaveMessage> next();
  /// Handles a message of the launcher. Returns false if it does not belong to this protocol.
  bool take(const hosts::SaveMessage& message);

 private:
  void offer();

  struct Fetch {
    int rank = -1;
    int64_t step = 0, sent = -1;  ///< -1: not begun
  };
  std::map<int, int> memories_;
  std::deque<hosts::SaveMessage> messages_;
  std::deque<Fetch> fetches_;
};

}  // namespace trainctl
