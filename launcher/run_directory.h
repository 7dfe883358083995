// The folder of one run:
//
//   log_output/<run>/job.yaml         the resolved job         <run> counts 1, 2, 3 …
//                                     Mode 0600 if it has env, whose values may be secrets.
//                    plan.json        the output of trainctl plan --json
//                    machine.json     of the launcher: host_facts.h
//                    metrics.jsonl    startup times, and one line per logged step
//                    events.out.tfevents.*    the same numbers, for TensorBoard
//                    loading          dataset.workers=… dataset.prefetch=…: settings that dataset.autotune chose
//                    outcome.json     how it ended    error.json   why, if it failed
//                    outcome.json.reserved   while it runs: disk space for outcome.json
//                    track.<tracker>.log    output of a tracker of `track`
//                    trace.json, profile.json    run --profile: engine/train/profile/
//                    tensors/step.<S>/<name>.npy    print: {format: npy}
//                    rank.<N>/stdout, stderr (log_files.h), start_up.json, error.json
//                    server.<N>/   the same for a server of parameter_server
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/output_file.h"
#include "launcher/rank_names.h"

namespace trainctl {

class RunDirectory {
 public:
  /// An existing run.
  RunDirectory(std::string log_dir, int run);

  /// Takes the next free number by mkdir, so launchers that start at the same moment get different ones. Creates the
  /// folders of all ranks, workers and servers. Throws EnvError, and leaves no folder then.
  static RunDirectory create(const std::string& log_dir, int workers, int servers = 0);

  int run() const { return run_; }
  std::string path() const { return log_dir_ + "/" + std::to_string(run_); }
  std::string file(std::string_view name) const { return path() + "/" + std::string(name); }
  const RankNames& names() const { return names_; }
  std::string rank_path(int rank) const { return path() + "/" + names_.folder(rank); }
  std::string rank_file(int rank, std::string_view name) const { return rank_path(rank) + "/" + std::string(name); }

  /// Writes a file of the run. Throws EnvError.
  void write(std::string_view name, std::string_view text, FileReaders readers = FileReaders::all) const;

  /// Reserves disk space for outcome.json, so that it can be written even if the disk is full at the end.
  /// Throws EnvError.
  void reserve_outcome() const;
  /// Writes outcome.json in the reserved space; `brief` if the disk has no space for `text`. Throws EnvError.
  void write_outcome(std::string_view text, std::string_view brief) const;

  /// Ranks that have a folder, ascending.
  std::vector<int> ranks() const;

 private:
  std::string log_dir_;
  int run_;
  RankNames names_;
};

/// File descriptors held in reserve, so that a folder can still be deleted where all others are in use.
class SpareFiles {
 public:
  /// Throws EnvError if there are not enough.
  SpareFiles();
  SpareFiles(const SpareFiles&) = delete;
  SpareFiles& operator=(const SpareFiles&) = delete;
  ~SpareFiles() { release(); }
  void release();

 private:
  std::array<int, 3> files_;  ///< a folder, one within it, and one to spare
};

/// Deletes a new run's folder unless keep() is called: a launcher that fails before its ranks start leaves nothing.
class NewRunFolder {
 public:
  /// `files`: what deleting it needs.
  explicit NewRunFolder(const RunDirectory& directory, std::unique_ptr<SpareFiles> files = std::make_unique<SpareFiles>())
      : path_(directory.path()), files_(std::move(files)) {}
  NewRunFolder(const NewRunFolder&) = delete;
  NewRunFolder& operator=(const NewRunFolder&) = delete;
  ~NewRunFolder();

  void keep() {
    is_kept_ = true;
    files_.reset();
  }
  bool is_kept() const { return is_kept_; }

 private:
  std::string path_;
  std::unique_ptr<SpareFiles> files_;
  bool is_kept_ = false;
};

/// Start time in nanoseconds since 1970: the time at which job.yaml was written. 0: unknown.
int64_t start_ns(const RunDirectory& directory);

enum class RunState { running, done, stopped, failed, lost };
std::string_view to_string(RunState state);

/// running: a launcher holds its RunLock. done, stopped (by a signal), failed: from outcome.json. lost: neither,
/// because the launcher was killed.
RunState state_of(const RunDirectory& directory);

/// A lock held by a run's launcher; the kernel releases it when the launcher ends for any reason.
class RunLock {
 public:
  explicit RunLock(const RunDirectory& directory);
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  ~RunLock();

 private:
  int fd_;
};

/// Numbers of the runs in a log directory, ascending; empty if it does not exist.
std::vector<int> list_runs(const std::string& log_dir);

}  // namespace trainctl
