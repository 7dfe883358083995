// Records when each instruction of a step ran, for `trainctl run --profile`. An executor with a Timeline
// (ExecutorOptions::timeline) asks it once per step whether to measure, and reports every instruction to it.
//
// start_step   calls wants(step) once. If false: nothing is measured, at no cost.
// CPU          reads the clock around each instruction and reports it at once.
// GPU          records an event before and after each instruction on its stream (event nodes if the step
//              is a captured graph), reads them once the step is finished, reports them in finish_step.
//
// All times are nanoseconds of monotonic_ns(), which processes of one host share. GPU times are mapped to
// it: an event is recorded on an idle stream and waited for; its time is the clock's right after the wait,
// and every other event is cudaEventElapsedTime away from it.
#pragma once

#include <cstdint>

#include "engine/base/monotonic_clock.h"

namespace trainctl {

struct TimeSpan {
  uint32_t step = 0;        ///< StepScalars::step: from 0 over the whole run
  int32_t instruction = 0;  ///< index into Program::instructions
  int64_t ready_ns = 0;     ///< its stream reached it and waits for sends from here on; begin_ns if it need not wait
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int32_t launched = 1;  ///< instructions that its launch ran, itself included; 0: an earlier launch ran it
};

class Timeline {
 public:
  virtual ~Timeline() = default;
  /// Returns whether to measure this step. Called by start_step, on the thread that trains.
  virtual bool wants(uint32_t step) = 0;
  /// Every instruction of a wanted step, once, in any order; instructions of one stream do not overlap.
  virtual void ran(const TimeSpan& span) = 0;
};

}  // namespace trainctl
