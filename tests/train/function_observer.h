// An observer for tests, which passes each event to a function. Functions that are not set do nothing.
#pragma once

#include <functional>

#include "engine/train/trainer/train_observer.h"

namespace trainctl {

struct FunctionObserver : StateObserver {
  std::function<void(const StartUpClock&)> first_step;
  std::function<void(const StepReport&)> step;
  std::function<void(const EpochReport&)> epoch;
  std::function<void(const ValidationReport&)> validation;
  std::function<void(const TrainPosition&)> position;
  std::function<void(int64_t step, Executor&)> state;  ///< before each step
  std::function<void(int64_t step, Executor&)> end;

  /// A list with only this observer.
  TrainObservers alone() {
    TrainObservers observers;
    observers.add(*this);
    return observers;
  }

  void on_first_step(const StartUpClock& clock) override { call(first_step, clock); }
  void on_step(const StepReport& report) override { call(step, report); }
  void on_epoch(const EpochReport& report) override { call(epoch, report); }
  void on_validation(const ValidationReport& report) override { call(validation, report); }
  void on_position(const TrainPosition& known) override { call(position, known); }
  void before_step(int64_t next, Executor& executor) override { call(state, next, executor); }
  void at_end(int64_t last, Executor& executor) override { call(end, last, executor); }

 private:
  template <typename Function, typename... Arguments>
  static void call(const Function& function, Arguments&&... arguments) {
    if (function) function(std::forward<Arguments>(arguments)...);
  }
};

}  // namespace trainctl
