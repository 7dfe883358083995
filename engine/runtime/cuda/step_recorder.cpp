// See the header.
#include "engine/runtime/cuda/step_recorder.h"

#include <utility>

#include "engine/base/round_up.h"
#include "engine/runtime/stored_ranges.h"

namespace trainctl::cuda {
namespace {

constexpr int64_t kAlignment = 256;

std::shared_ptr<std::byte> pinned_memory(int64_t bytes) {
  auto memory = std::make_shared<PinnedMemory>(make_pinned_memory(bytes));
  return {memory, static_cast<std::byte*>(memory->get())};
}

}  // namespace

std::unique_ptr<StepTape> new_tape(const Program& program, std::vector<StepTape::Exchange> exchanges) {
  auto tape = std::make_unique<StepTape>();
  for (const StoredRange& range : stored_ranges(program)) {
    if (range.count == 0) continue;
    tape->state.push_back({range.offset, tape->state_bytes, range.bytes()});
    tape->state_bytes = round_up(tape->state_bytes + range.bytes(), kAlignment);
  }
  const auto place = [&tape](int64_t& offset, int64_t bytes) {
    offset = tape->exchanged_bytes;
    tape->exchanged_bytes = round_up(tape->exchanged_bytes + bytes, kAlignment);
  };
  for (StepTape::Exchange& exchange : exchanges) {
    place(exchange.given, exchange.given_bytes);
    place(exchange.received, exchange.received_bytes);
    place(exchange.given_again, exchange.given_bytes);
  }
  tape->exchanges = std::move(exchanges);
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
