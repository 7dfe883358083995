// The process that writes checkpoints to disk, outside of the ranks and the launcher, so that neither a killed rank nor
// a hanging disk delays anything.
//
//   ranks ──▶ images in shared memory, SaveBoard ──▶ writer ──▶ disk
//   writer ──▶ launcher: one line per checkpoint, or why there is none
//   launcher ──▶ writer: end of file: the writer writes what the ranks have copied, and ends
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/planning/planned_job.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/train/checkpoint/checkpoint_directory.h"

namespace trainctl {

/// Returns whether the images of the save in progress are complete.
bool is_copied(const SharedMemory& memory);
/// Number of sets of images (SaveBoard) into which the job's ranks copy what is saved.
int image_sets(const PlannedJob& job);

/// Prefix of a line of the writer that reports why something is not saved.
inline constexpr char kTroubleMark = '!';
/// Suffix of such a line if the writer retries.
inline constexpr std::string_view kTryingAgain = "; retrying";

class CheckpointWriter {
 public:
  /// Forks it. `images`: one memfd per rank, which the rank sizes and fills; on several hosts by set (SaveBoard), then
  /// by rank. `base`: the weights that no image has. `attempt` was claimed in `directory`.
  CheckpointWriter(const PlannedJob& job, const std::optional<StoredBase>& base, const CheckpointDirectory& directory,
                   int attempt, int run, std::shared_ptr<SharedMemory> memory, const std::vector<int>& images);
  /// Detaches from the process, which ends by itself.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Lines that it has sent since the last call, without blocking; some begin with kTroubleMark.
  std::vector<std::string> news();
  /// Returns whether a signal has ended it. Returns true once.
  bool was_killed();
  /// The ranks have ended: waits until everything that they copied is written, or until nothing was written for
  /// `patience`. Returns false if something is left, also as soon as `is_hurried`. Call was_killed() to see whether the
  /// process was killed.
  bool finish(std::chrono::seconds patience, const std::function<bool()>& is_hurried);
  /// Kills it, so that it publishes nothing more. If it hangs in a disk access, it ends when the disk responds.
  void kill();

 private:
  bool has_ended();

  std::shared_ptr<SharedMemory> memory_;
  int pid_ = -1;
  bool was_killed_ = false;
  int fd_ = -1;  ///< its lines; closing our end makes it end
  std::string partial_;
};

}  // namespace trainctl
