// Calls from a server between its batches: to an observer of its updates, and to what saves its state.
#pragma once

#include <cstdint>

#include "engine/train/trainer/train_observer.h"

namespace trainctl {

/// Receives reports of a server's work. The defaults do nothing.
class ServerObserver {
 public:
  virtual ~ServerObserver() = default;
  /// Called after each update with the number of updates of the whole run, and with how many other updates its worker
  /// did not know of.
  virtual void on_update(int64_t /*updates*/, int64_t /*staleness*/) {}
  virtual void on_first_update(const StartUpClock&) {}
  /// Called for each epoch whose batches are all applied; the same on every server.
  virtual void on_epoch(const EpochReport&) {}
};

/// Saves a server's state.
class ServerSaves {
 public:
  virtual ~ServerSaves() = default;
  /// Called once for each step of the run, in order. Returns whether the state before it is to be saved, which is the
  /// same on every server.
  virtual bool saves_before(int64_t step) = 0;
  /// Called when all batches before position.step are applied, and no other.
  virtual void save(const TrainPosition& position, Executor& executor) = 0;
  /// The same at the end of the run.
  virtual void save_last(const TrainPosition& position, Executor& executor) = 0;
};

}  // namespace trainctl
