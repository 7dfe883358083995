// The directory of a run's checkpoints: how one is published, found, verified and deleted.
//
//   checkpoints/step_00000120/             a checkpoint: it has its final name
//               step_00000120.attempt_3/   the same step by a later attempt, while the name above was taken
//               .step_00000140.attempt_3/  being written, or left by a crash
//               .attempts/1, 2, 3          attempts that have begun; each file names its run in one line
//               .newest                    the last two names that were published, for mounts whose listings lag
//
// A directory belongs to one lineage: a run that began anew, and the runs that resumed from what it saved here. A run
// of another lineage does not start (`occupant`). Each launcher locks the file of its attempt while it saves here, so
// this also holds before the first checkpoint is published.
//
// An attempt is one start of a run's ranks. Its number is the file that it created in .attempts, so two launchers never
// have the same. `claim_attempt` then deletes what older attempts left half-written, and only after that looks for the
// checkpoint to resume from. `commit` refuses if a later attempt exists. So a straggler of an old attempt either
// published before the later one chose, or its files are gone:
//
//   straggler (attempt 3)                            attempt 4
//   write files, fsync each                          create .attempts/4
//   write checkpoint.json, fsync; fsync directory    delete .step_*.attempt_1..3, their checkpoint.json first
//   is there .attempts/4? then stop                  list, choose, resume
//   write .newest; rename to step_N, fsync parent
//
// Among checkpoints of the same step the one of the latest attempt counts. A deletion removes checkpoint.json first, so
// an interrupted deletion leaves nothing that looks complete.
//
// CommitBy::file is for mounts where rename copies (object stores): the directory is step_00000120.attempt_3 from the
// start, and checkpoint.json, which is written last and has its own checksum, is the commit file. Reading does not
// depend on how a checkpoint was committed: a directory without a checkpoint.json that agrees with its files is not
// complete.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/train/checkpoint/checkpoint_names.h"
#include "engine/train/checkpoint/manifest.h"
#include "engine/train/files/disk.h"

namespace trainctl {

enum class CommitBy { rename, file };
/// Returns `file` on FUSE, where object stores are mounted and a rename of a directory may copy all its files;
/// otherwise `rename`.
CommitBy commit_for(const std::string& path);

/// A checkpoint of a directory, complete or not.
struct CheckpointEntry {
  std::string path;  ///< path of its own directory
  std::string name;  ///< "step_00000120"
  int64_t step = 0;
  int attempt = 0;             ///< 0: not known, since neither its name nor a checkpoint.json says it
  std::string problem;         ///< why it is not complete; "" if it is
  bool unfinished = false;     ///< it was not published: being written, or left so
  bool being_written = false;  ///< by the latest attempt, which may have ended
  bool verified = false;       ///< verify found nothing wrong with it, as it is
  Manifest manifest;           ///< manifest of a complete one

  bool complete() const { return problem.empty(); }
};

/// The error of claim_attempt() in a directory that has an occupant (CheckpointDirectory::occupant).
class Occupied : public EnvError {
 public:
  using EnvError::EnvError;
};

/// The owner of the checkpoints in a directory.
struct CheckpointOwner {
  std::string lineage;  ///< "" for checkpoints of versions without lineages, which the name distinguishes
  std::string name;     ///< name of the job

  bool owns(const Manifest& manifest) const {
    return manifest.lineage == lineage && (!lineage.empty() || manifest.name == name);
  }
};

/// Holds the lock of a file until the object is destroyed or the process ends.
class AttemptLock {
 public:
  explicit AttemptLock(int fd) : fd_(fd) {}  ///< takes ownership of `fd`; -1: none
  ~AttemptLock();
  int fd() const { return fd_; }
  AttemptLock(const AttemptLock&) = delete;
  AttemptLock& operator=(const AttemptLock&) = delete;

 private:
  int fd_;
};

/// A later attempt has begun: this one publishes nothing any more.
class LaterAttempt : public EnvError {
 public:
  using EnvError::EnvError;
};

/// This attempt has published that step before.
class AlreadyPublished : public EnvError {
 public:
  using EnvError::EnvError;
};

class CheckpointDirectory {
 public:
  /// The constructor touches no file, and the directory need not exist.
  explicit CheckpointDirectory(std::string path, CommitBy commit_by = CommitBy::rename, Disk& disk = real_disk());
  const std::string& path() const { return path_; }
  /// The owner that was given to claim_attempt().
  const std::optional<CheckpointOwner>& owner() const { return owner_; }

  // Functions that write. All of them throw EnvError with path and reason.

  /// Creates the directory if needed, takes the next number, and deletes what older attempts have not published. From
  /// then on, commits by older attempts fail. `owner`: retain() deletes only its checkpoints; nullopt: any. `who`: one
  /// line for the attempt's file, "run 3 of the job 'mnist_mlp'". The lock lasts as long as this object and its copies.
  /// `is_newcomer`: the caller continues no checkpoint of this directory. Then it throws Occupied if there is an
  /// occupant; of two newcomers that start at the same moment one is refused.
  int claim_attempt(std::optional<CheckpointOwner> owner = {}, const std::string& who = "", bool is_newcomer = false);
  /// Returns the empty directory into which the files of a step are to be written. Throws LaterAttempt if a later
  /// attempt has begun, and EnvError if this attempt has already published the step.
  std::string begin(int64_t step, int attempt);
  /// Publishes the checkpoint. All files of the manifest, except job.yaml, have been written and synced in the
  /// directory of begin(). `job` is written as job.yaml and added to `files`. Returns the path at which the checkpoint
  /// will be found from now on, also after a loss of power. If the call throws, nothing has been published, or (if only
  /// the last sync failed) the whole checkpoint has.
  std::string commit(Manifest manifest, std::string_view job);
  /// Deletes the files of a step for which begin() was called but commit() was not, or failed. Never throws.
  void abandon(int64_t step, int attempt);

  // Functions that read.

  /// Returns why a run that does not continue checkpoints of this directory must not save here: another lineage has
  /// published some, or a launcher is saving here now. "" if nothing is in the way. Throws EnvError if it cannot be
  /// listed.
  std::string occupant() const;

  /// All checkpoints, the newest first: ordered by attempt, then by step. A run that starts anew, or resumes from an
  /// earlier step, has a later attempt, so its checkpoints are newer than those that it leaves behind. Incomplete
  /// checkpoints are ordered by their step. A checkpoint is complete if checkpoint.json is sound and the files have
  /// their sizes; only verify_checkpoint reads the contents.
  std::vector<CheckpointEntry> list() const;
  /// The first complete checkpoint of list(). `passed_over` receives the incomplete ones before it.
  std::optional<CheckpointEntry> newest_complete(std::vector<CheckpointEntry>* passed_over = nullptr) const;

  /// list() without the complete checkpoints of other owners.
  std::vector<CheckpointEntry> list_own() const;

  /// Deletes the complete checkpoints of list_own(), except the `keep` newest, the steps in `also`, and the newest
  /// verified one. An entry without a checkpoint.json (left by an interrupted deletion, or by an older attempt) is
  /// deleted too if it is older than the newest complete checkpoint. Damaged checkpoints stay. Returns the deleted
  /// paths. If a deletion fails, the other deletions are still tried before EnvError is thrown.
  std::vector<std::string> retain(int keep, const std::set<int64_t>& also = {});

 private:
  std::string folder_of(int64_t step, int attempt) const;
  bool is_latest(int attempt) const;
  void require_latest(int attempt) const;
  void delete_unpublished(int before_attempt);
  std::string publish(const Manifest& manifest, const std::string& text);
  void note_newest(const std::string& name);
  CheckpointEntry describe(const CheckpointName& name) const;

  std::string path_;
  CommitBy commit_by_;
  Disk* disk_;
  std::optional<CheckpointOwner> owner_;
  std::shared_ptr<AttemptLock> lock_;
};

}  // namespace trainctl
