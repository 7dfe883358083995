// The state that a rank holds, copied aside before each step into memory that outlives the rank. If a host is lost in
// the middle of a step, the other ranks' arenas are half updated, but these copies are whole.
//
//   memory := head, padded to a page; slot 0; slot 1        each slot an image (state_image.h), padded to a page
//
// Steps take turns: while the state before step s is copied into one slot, the other has that before step s - 1. Ranks
// that wait for each other in each step are less than two steps apart, so one of the two is in the memory of all.
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
#include "engine/train/trainer/trainer.h"

namespace trainctl {

/// The rank's side. For executors that have no step in flight while the next one starts.
class StateHolder {
 public:
  /// Takes `fd`, a memfd. `from`: where the run starts. Throws EnvError if there is no memory for it.
  StateHolder(const Program& program, int fd, const TrainPosition& from);
  void add_to(TrainHooks& hooks);

 private:
  void at_step(int64_t step, Executor& executor);
  void reported(const TrainPosition& position);
  void tell(int64_t step);

  const StateImage image_;
  ImageMemory memory_;
  TrainPosition position_;
  ValidationReport validation_;
};

/// The side of the process that holds the memory, while the rank runs or after its end.
class HeldState {
 public:
  explicit HeldState(int fd) : fd_(fd) {}
  /// The steps before which its state is held whole.
  std::vector<int64_t> steps() const;
  /// Size of an image; 0: nothing is held.
  int64_t bytes() const;
  std::optional<SaveBoard::Position> position(int64_t step) const;
  /// A part of the image of a held step; empty if it cannot be read.
  std::string read(int64_t step, int64_t offset, int64_t bytes) const;

 private:
  int fd_;
};

}  // namespace trainctl
