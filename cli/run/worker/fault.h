// Injected faults for tests of the launcher. TRAINCTL_TEST_FAULT in the environment of a run:
//
//   fault := rank ":" step ":" what        what := "exit" code | "hang" | "skip" | "flip"
//
//   2:5:exit3   rank 2 exits with code 3 instead of starting step 5
//   2:5:hang    it hangs there; 2:0:hang: it never reports that it has started
//   2:5:flip    from step 5 on, a bit of one of its weights is wrong after each step
//   2:5:skip    it skips the first collective of step 5; a GPU does not replay that step from its graph
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "engine/runtime/executor.h"

namespace trainctl {

/// Emulates slower processors, for tests and benchmarks of parameter servers on few cores.
/// TRAINCTL_TEST_SPEED in the environment of a run:
///
///   speed := microseconds_per_sample ":" factor ":" spell_ms ":" seed
///
///   500:3:200:7   a step takes 500 us per sample longer; in random periods of 200 ms, half of the time, 3 times that
///   500:3:0:2     worker 2 always takes 3 times that, and the others never
class EmulatedSpeed {
 public:
  /// Throws EnvError if the environment does not follow the grammar.
  static std::optional<EmulatedSpeed> of_environment(int rank);

  /// Sleeps as long as the worker's next step takes.
  void step(double samples) const;

 private:
  bool is_slow() const;

  int rank_ = 0;
  int64_t us_ = 0, factor_ = 1, spell_ms_ = 0, seed_ = 0;
};

class Fault {
 public:
  /// The fault that the environment orders for `rank`, if any. Throws EnvError if it does not follow the grammar.
  static std::optional<Fault> of_environment(int rank);

  /// Called when the rank is about to start step `step`; 0: to report that it has started.
  void strike(int64_t step) const;
  /// The collective to skip; nullopt if no skip is ordered or the program has no collective.
  std::optional<LeftOut> left_out(const Program& program) const;
  /// Changes the arena after a step, counted from 1; null if no flip is ordered.
  std::function<void(int64_t step, Executor&)> corruption(const Program& program) const;

 private:
  enum class What { exit, hang, skip, flip };

  int64_t step_ = 0;
  What what_ = What::hang;
  int code_ = 0;
};

}  // namespace trainctl
