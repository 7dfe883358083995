// The parts of the state that the ranks of a host hold (cli/run/saves/held_state.h), which a launcher takes
// from the remaining hosts when one is lost. They exchange these messages, in order:
//
//   launcher ──▶ host   offer
//   host ──▶ launcher   held       rank; number: a step before which the rank's state is whole; at most two of them
//                       head       rank; number: the bytes of its image; text: the image's head
//                       offered    rank: the host's first                        there is no more to offer
//   launcher ──▶ host   fetch      rank; number: the step
//   host ──▶ launcher   held_begin rank; number: the step; text: SaveBoard::Position
//                       held_part  rank; number: offset; text: bytes
//                       held_end   rank                                          the whole image has been sent
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "cli/run/saves/held_state.h"
#include "launcher/hosts/agent.h"

namespace trainctl {

/// A host's side.
class HeldStates {
 public:
  /// Makes memory for each of the host's ranks. Throws EnvError.
  explicit HeldStates(const std::vector<int>& ranks);
  ~HeldStates();
  HeldStates(const HeldStates&) = delete;
  HeldStates& operator=(const HeldStates&) = delete;

  /// A memfd that the rank sizes and fills.
  int memory(int rank) const { return memories_.at(rank); }
  /// The next word for the launcher; nullopt: there is none now.
  std::optional<hosts::SaveWord> next();
  /// Whether a word of the launcher's is for this; it is taken then.
  bool take(const hosts::SaveWord& word);

 private:
  void offer();

  struct Fetch {
    int rank = -1;
    int64_t step = 0, sent = -1;  ///< -1: not begun
  };
  std::map<int, int> memories_;
  std::deque<hosts::SaveWord> words_;
  std::deque<Fetch> fetches_;
};

}  // namespace trainctl
