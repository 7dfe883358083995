// Interfaces through which other rooms follow a training, or take part in its steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/start_up.h"
#include "engine/runtime/executor.h"
#include "engine/train/checkpoint/train_position.h"
#include "engine/train/data/loader.h"
#include "engine/train/files/metrics.h"

namespace trainctl {

/// Receives what a training reports, on its thread. All ranks report the same losses, metrics and validations.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;

  /// The first step is finished; the clock has the durations of the phases before. Called before its on_step.
  virtual void on_first_step(const StartUpClock&) {}
  virtual void on_step(const StepReport&) {}
  virtual void on_epoch(const EpochReport&) {}
  /// Called during a validation: `done` of `all` batches are finished.
  virtual void on_validation_progress(int64_t /*done*/, int64_t /*all*/) {}
  /// Called before the step that follows the validation, or before the end.
  virtual void on_validation(const ValidationReport&) {}
  /// dataset.autotune has changed the number of workers, before the step that follows `step`.
  virtual void on_loading(int64_t /*step*/, const LoadSetting&, const std::string& /*reason*/) {}
  /// dataset.on_error: skip has left out samples of the first `step` steps, or of steps that are read ahead. Called for
  /// the first sample, and each time the number of samples has doubled since the last call.
  virtual void on_skipped(int64_t /*step*/, const SkippedSamples&) {}
  /// train.on_spike: after step `step`, counted from 1, the state was set back to that before step `to`, counted from
  /// 0.
  virtual void on_rollback(int64_t /*step*/, int64_t /*to*/) {}
};

/// Also reads the training's state, which is in the arena of the executor.
class StateObserver : public TrainObserver {
 public:
  /// Called before each step starts, once it may start. The arena contains the state before that step as soon as the
  /// started steps are done.
  virtual void before_step(int64_t /*step*/, Executor&) {}
  /// Called before a validation that follows step `step`, so that a save survives a validation that fails. `is_end`:
  /// the run ends there. The arena contains the state before that step.
  virtual void before_validation(int64_t /*step*/, bool /*is_end*/, Executor&) {}
  /// Before a program other than that of the steps changes the state (parallel.local_steps): a copy of it must be
  /// complete.
  virtual void before_synchronization(Executor&) {}
  /// Called once, when the last step of the run is done, with the number of steps; not if the run fails.
  virtual void at_end(int64_t /*step*/, Executor&) {}
  /// Called after each step's on_step and on_epoch: what is known before step `position.step`.
  virtual void on_position(const TrainPosition&) {}
};

/// The observers of one training, which must outlive it. Each event reaches them in the order of add().
class TrainObservers {
 public:
  void add(TrainObserver& observer) { all_.push_back(&observer); }
  void add(StateObserver& observer) {
    all_.push_back(&observer);
    of_state_.push_back(&observer);
  }
  const std::vector<TrainObserver*>& all() const { return all_; }
  const std::vector<StateObserver*>& of_state() const { return of_state_; }

 private:
  std::vector<TrainObserver*> all_;
  std::vector<StateObserver*> of_state_;
};

/// Exchanges data with parameter servers around the batches of workers that run in step. `inputs` is a batch's block,
/// which may be changed until the executor starts.
class BatchExchange {
 public:
  virtual ~BatchExchange() = default;

  /// Called before the executor starts on the batch. `next`: the batch after it, if it has been read.
  virtual void before_batch(int64_t step, std::byte* inputs, const std::optional<Loader::Ahead>& next) = 0;
  /// The step is finished, and its gradients are in the arena.
  virtual void after_batch(const StepReport&) = 0;
  /// Called for each batch of a validation that precedes step `step`.
  virtual void before_validation_batch(int64_t step, std::byte* inputs) = 0;
};

}  // namespace trainctl
