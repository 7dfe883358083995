// Records a step on a tape, and replays it from there. All work is in the order of the stream that runs the step:
//
//   recording card   state ─► before │ step, which keeps its exchanges │ state ─► after │ digests
//   replaying card   before ─► state │ step, which takes its exchanges │ digests
//
// The exchanges are kept and taken by the step itself (StepProgram::Issue::tape). Copies within and between devices
// take the time of a few passes over the state; memory of the host, which the tape uses if a device has no room, takes
// longer.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/runtime/bound_operands.h"
#include "engine/runtime/cuda/range_digests.h"
#include "engine/runtime/step_tape.h"

namespace trainctl::cuda {

class StepRecorder {
 public:
  /// Takes the memory of the tape. `memory` and `tape` must outlive it.
  StepRecorder(const RankMemory& memory, StepTape& tape);
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  const StepTape& tape() const { return tape_; }
  /// Records the state after the work of `compute` so far.
  void begin(cudaStream_t compute);
  /// The same, after the step, with the digests of that state and of what the step gave.
  void end(cudaStream_t compute);
  bool is_done(bool wait) const;
  std::vector<uint64_t> digests() const { return digests_.wait(); }

 private:
  const RankMemory memory_;
  StepTape& tape_;
  RangeDigests digests_;
  Event done_;
};

class StepReplay {
 public:
  /// Takes the memory for what the replay gives. `memory` and `tape` must outlive it.
  StepReplay(const RankMemory& memory, StepTape& tape);

  /// The next step of `compute` starts from the state on the tape.
  void load(cudaStream_t compute);
  /// Digests of the state and of what was given, after the work of `compute` so far.
  std::vector<uint64_t> digests(cudaStream_t compute);

 private:
  const RankMemory memory_;
  StepTape& tape_;
  RangeDigests digests_;
  bool has_peer_access_ = false;
};

}  // namespace trainctl::cuda
