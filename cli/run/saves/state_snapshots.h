// Snapshots of a rank's state, copied before each step into memory that outlives the rank. If a host is lost in the
// middle of a step, the other ranks' arenas are partly updated, but the snapshots are complete.
//
//   memory := head, padded to a page; slot 0; slot 1        each slot an image (state_image.h), padded to a page
//
// Steps alternate: while the state before step s is copied into one slot, the other has that before step s - 1. Ranks
// that wait for each other in each step are less than two steps apart, so all ranks have a snapshot of a common step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/saves/saver.h"
#include "engine/compile/program.h"
#include "engine/runtime/comm/save_board.h"
#include "engine/train/checkpoint/state_image.h"
#include "engine/train/trainer/train_observer.h"

namespace trainctl {

/// The rank's side, for executors that have no step in flight while the next one starts.
class SnapshotWriter : public StateObserver {
 public:
  /// Takes ownership of `fd`, a memfd. `from`: start of the run. Throws EnvError if memory cannot be allocated.
  SnapshotWriter(const Program& program, int fd, const TrainPosition& from);

  void before_step(int64_t step, Executor& executor) override;
  void on_validation(const ValidationReport& report) override { validation_ = report; }
  void on_position(const TrainPosition& position) override;

 private:
  void report_position(int64_t step);

  const StateImage image_;
  ImageMemory memory_;
  TrainPosition position_;
  ValidationReport validation_;
};

/// The side of the process that keeps the memory, while the rank runs or after its end.
class StateSnapshots {
 public:
  explicit StateSnapshots(int fd) : fd_(fd) {}
  /// The steps before which a complete copy of its state exists.
  std::vector<int64_t> steps() const;
  /// Size of an image; 0: there is none.
  int64_t bytes() const;
  std::optional<SaveBoard::Position> position(int64_t step) const;
  /// A part of the image of such a step; empty if it cannot be read.
  std::string read(int64_t step, int64_t offset, int64_t bytes) const;

 private:
  int fd_;
};

}  // namespace trainctl
