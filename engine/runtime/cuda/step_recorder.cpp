// Allocates the memory of a tape, copies the state before and after a recorded step, and computes the digests by which
// a recorded and a replayed step are compared.
//
// A StepTape (engine/runtime/step_tape.h) lists the state twice:
//   state   one entry per stored range, and the loss, in an order that both cards share: each entry has its own digest
//   moves   the same bytes, with adjacent ranges joined: copies use it, because fewer and larger copies are faster
// For each exchange (a collective, send or recv), "given" is the operand that the rank passes to it, and "received" is
// the result that the rank gets from it. This file only allocates memory for them. StepProgram::enqueue_exchange fills
// and reads it:
//   recording card   copies the operand to `given`, runs the exchange, and copies the result to `received`
//   replaying card   copies the operand to `given_again`, and takes the result from `received` instead of communicating
// The digests show whether `given_again` equals `given`. Exchanges whose operands are not compared have given_bytes 0
// (engine/runtime/tape_layout.cpp).
#include "engine/runtime/cuda/step_recorder.h"

#include <memory>
#include <utility>

#include "engine/runtime/cuda/state_copier.h"

namespace trainctl::cuda {
namespace {

template <class Memory>
std::shared_ptr<std::byte> shared(Memory memory) {
  auto owner = std::make_shared<Memory>(std::move(memory));
  return {owner, static_cast<std::byte*>(owner->get())};
}

/// Memory of the current device, or of the host.
std::shared_ptr<std::byte> tape_memory(int64_t bytes) {
  if (DeviceMemory room = room_for_copy(bytes)) return shared(std::move(room));
  return shared(make_pinned_memory(bytes));
}

/// Gives the current device access to the memory of another one, if the devices support it.
void enable_peer_access(const std::byte* memory) {
  int device = 0;
  cudaPointerAttributes of_memory{};
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaPointerGetAttributes(&of_memory, memory), "cudaPointerGetAttributes");
  if (of_memory.type != cudaMemoryTypeDevice || of_memory.device == device) return;
  if (cudaDeviceEnablePeerAccess(of_memory.device, 0) != cudaSuccess) cudaGetLastError();
}

/// Returns the ranges to digest: each stored range of state in the arena, then each exchange's operand. `given`: the
/// tape's memory of these operands, StepTape::given of the recording card or given_again of the replaying card.
std::vector<DigestedRange> ranges_of(const RankMemory& memory, const StepTape& tape, const std::byte* given) {
  std::vector<DigestedRange> ranges;
  for (const StateCopy& copy : tape.state) ranges.push_back({memory.at(copy.offset), copy.bytes});
  for (const StepTape::Exchange& exchange : tape.exchanges)
    ranges.push_back({given + exchange.given, exchange.given_bytes});
  return ranges;
}

/// Allocates all memory of the tape except given_again.
StepTape& allocate_recording(StepTape& tape) {
  tape.before = tape_memory(tape.state_bytes);
  tape.received = tape_memory(tape.received_bytes);
  tape.given = tape_memory(tape.given_bytes);
  tape.after = tape_memory(tape.state_bytes);
  return tape;
}

/// Allocates given_again. The rest of the tape is that of the recording card.
StepTape& allocate_replay(StepTape& tape) {
  tape.given_again = tape_memory(tape.given_bytes);
  return tape;
}

void copy(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  cuda_check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
             "cudaMemcpyAsync of the state");
}

}  // namespace

StepRecorder::StepRecorder(const RankMemory& memory, StepTape& tape)
    : memory_(memory),
      tape_(allocate_recording(tape)),
      digests_(ranges_of(memory, tape, tape.given.get())),
      done_(make_event()) {}

StepRecorder::~StepRecorder() {
  if (!device_is_lost) cudaEventSynchronize(done_.get());
}

void StepRecorder::begin(cudaStream_t compute) {
  for (const StateCopy& c : tape_.moves) copy(tape_.before.get() + c.to, memory_.at(c.offset), c.bytes, compute);
}

void StepRecorder::end(cudaStream_t compute) {
  for (const StateCopy& c : tape_.moves) copy(tape_.after.get() + c.to, memory_.at(c.offset), c.bytes, compute);
  digests_.begin(compute);
  cuda_check(cudaEventRecord(done_.get(), compute), "cudaEventRecord");
}

bool StepRecorder::is_done(bool wait) const { return cuda::is_done(done_, wait); }

StepReplay::StepReplay(const RankMemory& memory, StepTape& tape)
    : memory_(memory), tape_(allocate_replay(tape)), digests_(ranges_of(memory, tape, tape.given_again.get())) {}

/// Copies between two devices are direct where they can access each other's memory; elsewhere the driver copies through
/// the host.
void StepReplay::load(cudaStream_t compute) {
  if (!has_peer_access_) {
    enable_peer_access(tape_.before.get());
    has_peer_access_ = true;
  }
  for (const StateCopy& c : tape_.moves) copy(memory_.at(c.offset), tape_.before.get() + c.to, c.bytes, compute);
}

std::vector<uint64_t> StepReplay::digests(cudaStream_t compute) {
  digests_.begin(compute);
  return digests_.wait();
}

}  // namespace trainctl::cuda
