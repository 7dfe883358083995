// The launcher's side of saves on several hosts (cli/run/saves/host_saves.h): decides for all hosts which states are
// saved, and gathers the ranks' images, so that a checkpoint survives the loss of any other host. When all images of a
// save are complete, they are offered to the process that writes.
//
//   decided ──images arrive──▶ gathered, and offered to the writer ──▶ on disk
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "engine/runtime/comm/shared_memory.h"
#include "launcher/hosts/agent.h"

namespace trainctl {

/// Condition for the next save to begin.
enum class SaveAfter : uint8_t {
  on_disk,   ///< the previous save is on disk: slow disks and links delay the next save, but no step
  gathered,  ///< the launcher has the previous save. The step after a save counts only once the launcher has that save,
             ///< and a step at which the next save is due waits for it, so no save is skipped
};

class GatheredSaves {
 public:
  /// `images`: by set (SaveBoard), then by rank, a memfd, which must stay open. The run resumes from the state before
  /// step `first`, or begins with it.
  GatheredSaves(std::shared_ptr<SharedMemory> memory, std::vector<int> images, int64_t first, SaveAfter after);

  /// Handles a message from the host that has `ranks`. Returns false if no host may send it.
  bool take(const hosts::SaveMessage& message, const std::vector<int>& ranks);
  /// Returns the pending messages for all hosts, in order.
  std::vector<hosts::SaveMessage> messages();

  /// Returns whether a save is requested and none is in progress. Then the gates of all hosts (step_gate.h) must be
  /// held, so that all ranks stop before the same step.
  bool wants_hold() const;
  /// All gates are held, and no rank has started a step above `highest`, which counts from 1: begins the save there.
  void gates_held(uint64_t highest);
  /// Step of the save whose images are being sent; -1: none.
  int64_t gathering() const { return gathering_; }

 private:
  void answer(int64_t step);
  void decide(int64_t step, bool saves);
  void begin(int64_t step);
  void offer_if_complete();
  void finish(bool kept);
  bool can_begin() const { return saving_ < 0; }
  int image(int rank) const;
  void moved();

  std::shared_ptr<SharedMemory> memory_;
  const std::vector<int> images_;
  std::vector<int64_t> sizes_;  ///< by rank
  const int64_t first_;
  const SaveAfter after_;
  std::map<int64_t, bool> decisions_;  ///< for the newest steps: whether the step is saved
  bool was_skipped_ = false;           ///< a due save was skipped, because another was in progress
  uint64_t asked_ = 0;                 ///< value of SaveBoard::asked that was answered last
  int64_t saving_ = -1;                ///< step of the save in progress, as sent to the hosts; -1: none
  int64_t waiting_ = -1;               ///< step whose decision waits for that save
  // The save whose images are being sent.
  int64_t gathering_ = -1;
  int set_ = 0;
  std::set<int> copied_;  ///< the ranks whose images are whole
  std::optional<SaveBoard::Position> reported_;
  uint64_t written_bytes_ = 0, written_ = 0, failed_tries_ = 0;
  std::vector<hosts::SaveMessage> messages_;
};

}  // namespace trainctl
