// Records a step on a tape while the device continues: the state before and after it, by copies as those of a
// checkpoint. The exchanges are recorded by the step itself (StepProgram::Issue::tape).
#pragma once

#include <memory>

#include "engine/compile/program.h"
#include "engine/runtime/cuda/state_copier.h"
#include "engine/runtime/step_tape.h"

namespace trainctl::cuda {

/// Returns a tape in pinned memory.
std::unique_ptr<StepTape> new_tape(const Program& program);

class StepRecorder {
 public:
  /// The memory and `tape` must outlive it.
  StepRecorder(const RankMemory& memory, StepTape& tape);

  const StepTape& tape() const { return tape_; }
  /// Records the state after the work of `compute` so far. Returns the tape for the step.
  const StepTape& begin(cudaStream_t compute);
  /// The same, after the step.
  void end(cudaStream_t compute);
  bool is_done(bool wait) const;

 private:
  StepTape& tape_;
  StateCopier before_, after_;
};

}  // namespace trainctl::cuda
