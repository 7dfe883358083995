// Records a step on a tape while the device continues: the state before and after it, by copies as those of a
// checkpoint. The step itself records its exchanges (exchange_memory.h).
#pragma once

#include <memory>

#include "engine/compile/program.h"
#include "engine/runtime/cuda/exchange_memory.h"
#include "engine/runtime/cuda/state_copier.h"
#include "engine/runtime/step_tape.h"

namespace trainctl::cuda {

/// Returns a tape in pinned memory.
std::unique_ptr<StepTape> new_tape(const Program& program);

class StepRecorder {
 public:
  /// The memory and `tape` must outlive it.
  StepRecorder(const RankMemory& memory, StepTape& tape);

  const StepTape& tape() const { return exchanges_.tape(); }
  /// Records the state after the work of `compute` so far. Returns the memory for the exchanges of the step.
  const ExchangeMemory& begin(cudaStream_t compute);
  /// The same, after the step.
  void end(cudaStream_t compute);
  bool is_done(bool wait) const;

 private:
  ExchangeMemory exchanges_;
  StateCopier before_, after_;
};

}  // namespace trainctl::cuda
