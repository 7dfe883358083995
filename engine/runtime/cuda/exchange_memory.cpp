// Copies the exchanges of a step between the device and the tape, before and after the step.
#include "engine/runtime/cuda/exchange_memory.h"

#include "engine/runtime/cuda/state_copier.h"

namespace trainctl::cuda {
namespace {

int64_t first_received(const StepTape& tape) { return tape.exchanges.empty() ? 0 : tape.exchanges.front().received; }

int64_t first_given_again(const StepTape& tape) {
  return tape.exchanges.empty() ? 0 : tape.exchanges.front().given_again;
}

}  // namespace

ExchangeMemory::ExchangeMemory(const StepTape& tape, Use use)
    : tape_(tape),
      received_(first_received(tape)),
      given_again_(first_given_again(tape)),
      first_(use == Use::replay ? received_ : 0),
      end_(use == Use::replay ? tape.exchanged_bytes : given_again_),
      replays_(use == Use::replay) {
  if (first_ == end_) return;
  aside_ = room_for_copy(end_ - first_);
  stream_ = make_stream(false);
  ready_ = make_event();
  done_ = make_event();
}

ExchangeMemory::~ExchangeMemory() {
  if (!device_is_lost && stream_) cudaStreamSynchronize(stream_.get());
}

std::byte* ExchangeMemory::at(int64_t offset) const {
  return aside_ ? static_cast<std::byte*>(aside_.get()) + (offset - first_) : tape_.exchanged.get() + offset;
}

void ExchangeMemory::copy(int64_t first, int64_t end, bool to_device) {
  if (!aside_ || first == end) return;
  std::byte *const host = tape_.exchanged.get() + first, *const device = at(first);
  cuda_check(cudaMemcpyAsync(to_device ? device : host, to_device ? host : device, static_cast<size_t>(end - first),
                             cudaMemcpyDefault, stream_.get()),
             "cudaMemcpyAsync of exchanges");
}

void ExchangeMemory::load() {
  if (!stream_) return;
  copy(received_, given_again_, true);
  cuda_check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
}

void ExchangeMemory::save(cudaStream_t compute) {
  if (!stream_) return;
  cuda_check(cudaEventRecord(ready_.get(), compute), "cudaEventRecord");
  cuda_check(cudaStreamWaitEvent(stream_.get(), ready_.get()), "cudaStreamWaitEvent");
  copy(replays_ ? given_again_ : first_, end_, false);
  cuda_check(cudaEventRecord(done_.get(), stream_.get()), "cudaEventRecord");
}

bool ExchangeMemory::is_saved(bool wait) const {
  if (!stream_) return true;
  if (wait) cuda_check(cudaEventSynchronize(done_.get()), "cudaEventSynchronize");
  const cudaError_t status = cudaEventQuery(done_.get());
  if (status == cudaErrorNotReady) return false;
  cuda_check(status, "cudaEventQuery");
  return true;
}

}  // namespace trainctl::cuda
