// Copies the state of a GPU rank to the host while the next steps run: first to another place on the device, which
// takes the time of a few passes over it, then over the bus.
#include "engine/runtime/cuda/state_copier.h"

#include <algorithm>
#include <utility>

namespace trainctl::cuda {
namespace {

/// Left to libraries that allocate later.
constexpr int64_t kFreeBesideState = int64_t{512} << 20;

}  // namespace

DeviceMemory room_for_copy(int64_t bytes) {
  size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (static_cast<int64_t>(free) < bytes + kFreeBesideState) return {};
  return make_device_memory(bytes);
}

StateCopier::StateCopier(const RankMemory& memory, std::vector<StateCopy> copies, std::byte* to)
    : memory_(memory), copies_(std::move(copies)), to_(to) {
  if (copies_.empty()) return;
  begin_ = copies_.front().to;
  for (const StateCopy& c : copies_) {
    begin_ = std::min(begin_, c.to);
    end_ = std::max(end_, c.to + c.bytes);
  }
  pinned_ = cudaHostRegister(to_, static_cast<size_t>(end_), cudaHostRegisterPortable) == cudaSuccess;
  if (!pinned_) cudaGetLastError();
  aside_ = room_for_copy(bytes());
  stream_ = make_stream(false);
  ready_ = make_event();
  done_ = make_event();
}

StateCopier::~StateCopier() {
  if (device_is_lost || copies_.empty()) return;
  cudaStreamSynchronize(stream_.get());
  if (pinned_) cudaHostUnregister(to_);
}

void StateCopier::begin(cudaStream_t compute) {
  if (copies_.empty()) return;
  auto* aside = static_cast<std::byte*>(aside_.get());
  for (const StateCopy& c : copies_) {
    void* const target = aside != nullptr ? aside + (c.to - begin_) : to_ + c.to;
    cuda_check(cudaMemcpyAsync(target, memory_.at(c.offset), static_cast<size_t>(c.bytes), cudaMemcpyDefault, compute),
               "cudaMemcpyAsync of the state");
  }
  cuda_check(cudaEventRecord(ready_.get(), compute), "cudaEventRecord");
  cuda_check(cudaStreamWaitEvent(stream_.get(), ready_.get()), "cudaStreamWaitEvent");
  if (aside != nullptr) {
    cuda_check(
        cudaMemcpyAsync(to_ + begin_, aside, static_cast<size_t>(bytes()), cudaMemcpyDeviceToHost, stream_.get()),
        "cudaMemcpyAsync of the state");
  }
  cuda_check(cudaEventRecord(done_.get(), stream_.get()), "cudaEventRecord");
}

bool StateCopier::is_done(bool wait) const { return copies_.empty() || cuda::is_done(done_, wait); }

}  // namespace trainctl::cuda
