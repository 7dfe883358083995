// The process that puts checkpoints on disk, outside of the ranks and of the launcher: neither a rank that is killed
// nor a disk that hangs holds anything up.
//
//   ranks ──▶ images in shared memory, SaveBoard ──▶ writer ──▶ disk
//   writer ──▶ launcher: a line a checkpoint, or why there is none
//   launcher ──▶ writer: end of file. It writes what the ranks have copied, and ends
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/planning/planned_job.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/train/checkpoint/checkpoint_directory.h"

namespace trainctl {

/// Whether the images of the save under way are whole.
bool is_copied(const SharedMemory& memory);
/// Into how many sets of memory (SaveBoard) the job's ranks copy what is saved.
int image_sets(const PlannedJob& job);

/// Begins a line of the writer that says why something is not saved.
inline constexpr char kTroubleMark = '!';
/// Ends such a line if the writer tries again.
inline constexpr std::string_view kTryingAgain = "; trying again";

class CheckpointWriter {
 public:
  /// Forks it. `images`: by rank a memfd, which the rank sizes and fills; of several hosts by set (SaveBoard), then by
  /// rank. `attempt` was claimed in `directory`.
  CheckpointWriter(const PlannedJob& job, const CheckpointDirectory& directory, int attempt, int run,
                   std::shared_ptr<SharedMemory> memory, const std::vector<int>& images);
  /// Leaves it to end by itself.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Lines that it has said since the last call, without blocking; kTroubleMark begins some.
  std::vector<std::string> news();
  /// Whether a signal has ended it. True once.
  bool was_killed();
  /// The ranks have ended: waits until everything that they copied is written, or nothing was for `patience`. False if
  /// something is left, also as soon as `is_hurried`. It may also have been killed: ask.
  bool finish(std::chrono::seconds patience, const std::function<bool()>& is_hurried);
  /// It publishes nothing any more. One that is in a call of a disk that hangs ends when that answers.
  void kill();

 private:
  bool has_ended();

  std::shared_ptr<SharedMemory> memory_;
  int pid_ = -1;
  bool was_killed_ = false;
  int fd_ = -1;  ///< its lines; our end being shut tells it to end
  std::string partial_;
};

}  // namespace trainctl
