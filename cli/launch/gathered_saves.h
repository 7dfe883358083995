// The launcher's side of saves on several hosts (cli/worker/host_saves.h): decides for all hosts which states are
// saved, and gathers the ranks' images, so that a checkpoint outlives the loss of any other host. From there on the
// board and the images are those of one host: the same process writes them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/runtime/comm/shared_memory.h"
#include "launcher/hosts/agent.h"

namespace trainctl {

class GatheredSaves {
 public:
  /// `images`: by rank a memfd, which must stay open. The run goes on from the state before step `first`, or begins
  /// with it.
  GatheredSaves(std::shared_ptr<SharedMemory> memory, std::vector<int> images, int64_t first);

  /// Of a host with these ranks. False: no host says this.
  bool take(const hosts::SaveWord& word, const std::vector<int>& ranks);
  /// What there is to tell all hosts, in order.
  std::vector<hosts::SaveWord> words();

  /// A save is asked for, and none is under way: all gates are to be held.
  bool wants_hold() const;
  /// They are, and no rank has started a step above `highest`, which counts from 1.
  void held(uint64_t highest);

 private:
  void decide(int64_t step, bool saves);
  void moved(const std::vector<int>& ranks);

  std::shared_ptr<SharedMemory> memory_;
  const std::vector<int> images_;
  std::vector<int64_t> sizes_;
  const int64_t first_;
  std::map<int64_t, bool> decisions_;  ///< of the newest steps
  bool is_open_ = false;               ///< a save was refused because another was under way
  uint64_t asked_ = 0;                 ///< answered, of SaveBoard::asked
  int64_t saving_ = -1;                ///< as the hosts know it
  uint64_t written_bytes_ = 0, written_ = 0;
  std::vector<hosts::SaveWord> words_;
};

}  // namespace trainctl
