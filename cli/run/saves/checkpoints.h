// A run's saves as the launcher sees them: the checkpoint to resume from, the memory that the ranks copy into, and the
// process that writes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/saves/checkpoint_writer.h"
#include "engine/train/checkpoint/write_checkpoint.h"
#include "launcher/run_directory.h"
#include "launcher/spawn.h"

namespace trainctl {

/// Options of `trainctl run --resume`.
struct ResumeOptions {
  bool resume = false;
  std::string from;      ///< a checkpoint, a run's folder, number or `latest`, or a folder of checkpoints; empty: the
                         ///< job's newest
  bool partial = false;  ///< --partial: load only the tensors that match the job
  bool continues_run = false;  ///< launch.elastic: another plan of a run that has begun, whose folder is its own
};

/// A checkpoint that was read and verified.
struct ResumePoint {
  std::string path;
  Manifest manifest;
};

/// The folder of a run's checkpoints, which need not exist: `checkpoints` in the run's folder, or train.checkpoint.dir
/// of its job.
std::string checkpoint_folder(const RunDirectory& run);

/// The newest complete and undamaged checkpoint. Without ResumeOptions::from, one of a job with the same name that has
/// its whole state. `notices`: checkpoints that were skipped, and why. Throws EnvError if there is none.
ResumePoint find_resume_point(const JobSpec& spec, const ResumeOptions& options, std::vector<std::string>& notices);

enum class CheckpointUse : uint8_t {
  train,     ///< resumes from the checkpoint, if requested, and saves
  evaluate,  ///< reads the weights and running statistics
  generate,  ///< the same; no samples are read
};

class Checkpoints {
 public:
  /// `job` must outlive it. Finds the checkpoint to resume from. Throws EnvError if there is no suitable one, SpecError
  /// if train.checkpoint.dir has checkpoints that the run does not continue.
  Checkpoints(const PlannedJob& job, const ResumeOptions& options, CheckpointUse use = CheckpointUse::train);
  ~Checkpoints();

  /// Prepares an attempt. Every attempt after the first resumes from the newest checkpoint. Throws EnvError.
  void prepare(int attempt, const RunDirectory& directory, const std::shared_ptr<SharedMemory>& memory);
  /// Adds the options of `trainctl worker`, and the descriptors that it inherits.
  void add_to(ProcessCommand& command, int rank) const;
  /// Adds only how often the run has failed; for ranks of other hosts.
  void add_attempt_to(ProcessCommand& command) const;
  /// The writer finds the states in these: by rank, on several hosts by set (SaveBoard), then by rank; empty: nothing
  /// is saved.
  const std::vector<int>& images() const { return images_; }
  /// Returns whether the job saves its state, or its final weights.
  bool are_saved() const { return job_.spec.train.saves(); }
  /// Returns why the last save failed; "" if it did not.
  const std::string& trouble() const { return trouble_; }
  std::vector<std::string> news();
  /// The ranks have ended: waits for the disk, until `is_hurried`, and returns lines for the user.
  std::vector<std::string> finish(const std::function<bool()>& is_hurried = {});
  /// Publishes a state that the ranks have not saved themselves, once they have ended and finish() was called. Throws
  /// EnvError.
  void write(int64_t step, const SaveBoard::Position& position, const Images& images, const RunDirectory& directory);
  /// First step to train, counted in batches of this job; 0: the ranks start from the beginning.
  int64_t first_step() const;
  /// The checkpoint that the run, or its current attempt, resumes from; null if it starts from the beginning.
  const ResumePoint* resumed_from() const { return point_ ? &*point_ : nullptr; }

 private:
  std::string folder(const RunDirectory& directory) const;
  bool continues(const std::string& folder) const;
  CheckpointOwner owner(const RunDirectory& directory) const;
  int claim(CheckpointDirectory& checkpoints, int attempt, const RunDirectory& directory) const;
  std::vector<std::string> writers_news();
  void close_images();
  bool revive_writer();
  void give_up_save();
  void watch_disk();
  void find_newest(const CheckpointDirectory& directory);

  const PlannedJob& job_;
  const ResumeOptions options_;
  const CheckpointUse use_;
  std::optional<ResumePoint> point_;
  std::optional<StoredBase> base_;  ///< weights that the saves leave out
  int attempt_ = 0;
  std::vector<int> images_;  ///< memfds as in images(), followed by those of servers if there are tables
  std::function<std::unique_ptr<CheckpointWriter>()> start_writer_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::shared_ptr<SharedMemory> memory_;  ///< memory of the attempt that writer_ serves
  int killed_writers_ = 0;                ///< writers killed during the save of step killed_at_
  int64_t killed_at_ = -1;
  struct Watch {
    int64_t step = -1;   ///< step of the save that all ranks have copied
    uint64_t bytes = 0;  ///< bytes written at the last progress
    std::chrono::steady_clock::time_point since;
    bool is_reported = false;
  } watch_;
  std::vector<std::string> notices_;
  std::string trouble_;
};

}  // namespace trainctl
