// Copies the state before and after a step to pinned memory of the host, while the device continues.
#include "engine/runtime/cuda/step_recorder.h"

#include "engine/runtime/tape_layout.h"

namespace trainctl::cuda {
namespace {

std::shared_ptr<std::byte> pinned_memory(int64_t bytes) {
  auto memory = std::make_shared<PinnedMemory>(make_pinned_memory(bytes));
  return {memory, static_cast<std::byte*>(memory->get())};
}

}  // namespace

std::unique_ptr<StepTape> new_tape(const Program& program) {
  auto tape = std::make_unique<StepTape>(lay_out_tape(program));
  tape->before = pinned_memory(tape->state_bytes);
  tape->after = pinned_memory(tape->state_bytes);
  tape->exchanged = pinned_memory(tape->exchanged_bytes);
  return tape;
}

StepRecorder::StepRecorder(const RankMemory& memory, StepTape& tape)
    : tape_(tape), before_(memory, tape.state, tape.before.get()), after_(memory, tape.state, tape.after.get()) {}

const StepTape& StepRecorder::begin(cudaStream_t compute) {
  before_.begin(compute);
  return tape_;
}

void StepRecorder::end(cudaStream_t compute) { after_.begin(compute); }

bool StepRecorder::is_done(bool wait) const { return before_.is_done(wait) && after_.is_done(wait); }

}  // namespace trainctl::cuda
