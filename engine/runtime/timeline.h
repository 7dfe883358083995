// When each instruction of a step ran, for `trainctl run --profile`. An executor that is given a Timeline
// (ExecutorOptions::timeline) asks it once a step whether to look, and tells it of every instruction.
//
//   start_step   wants(step)? once. If not: nothing is measured, nothing costs.
//   CPU          reads the clock around each instruction, and tells of it at once.
//   GPU          records an event before and after each instruction on its stream (event nodes where the step
//                is a captured graph), reads them once the step is finished, and tells of them in finish_step.
//
// All times are nanoseconds of monotonic_ns(), which processes of one host share. A GPU's are
// mapped to it: an event is recorded on an idle stream and waited for; that event's time is the clock's
// right after the wait, and the others lie cudaEventElapsedTime away from it.
#pragma once

#include <cstdint>

#include "engine/base/monotonic_clock.h"

namespace trainctl {

struct TimeSpan {
  uint32_t step = 0;        ///< StepScalars::step: from 0 over the whole run
  int32_t instruction = 0;  ///< index into Program::instructions
  int64_t ready_ns = 0;     ///< its stream came to it: it starts to wait for sends; begin_ns where it need not
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int32_t launched = 1;  ///< instructions that its launch ran, it and those behind it; 0: an earlier one's launch did
};

class Timeline {
 public:
  virtual ~Timeline() = default;
  /// Whether this step is to be looked at. Called by start_step, on the thread that trains.
  virtual bool wants(uint32_t step) = 0;
  /// Every instruction of a wanted step, once, in any order; instructions of a stream do not overlap.
  virtual void ran(const TimeSpan& span) = 0;
};

}  // namespace trainctl
