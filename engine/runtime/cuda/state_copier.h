// Copies the state of a GPU rank to the host while the next steps run: first to another place on the device, which
// takes the time of a few passes over it, then over the bus. A device without room for the copy sends the state
// straight to the host, and the next step waits for that.
#pragma once

#include <vector>

#include "engine/runtime/bound_operands.h"
#include "engine/runtime/cuda/handles.h"
#include "engine/runtime/state_copy.h"

namespace trainctl::cuda {

/// Zeroed memory of the device for a copy of that size, if enough is left for libraries that allocate later; else
/// empty.
DeviceMemory room_for_copy(int64_t bytes);

class StateCopier {
 public:
  /// The memory and `to`, where the copies end, must outlive it. `to` is pinned if the driver allows it.
  StateCopier(const RankMemory& memory, std::vector<StateCopy> copies, std::byte* to);
  ~StateCopier();
  StateCopier(const StateCopier&) = delete;
  StateCopier& operator=(const StateCopier&) = delete;

  /// After the work of `compute` so far; its later work waits for the copy on the device.
  void begin(cudaStream_t compute);
  bool is_done(bool wait) const;
  int64_t bytes() const { return end_ - begin_; }
  /// Returns whether the state is first copied to another place on the device.
  bool is_aside() const { return static_cast<bool>(aside_); }

 private:
  const RankMemory memory_;
  const std::vector<StateCopy> copies_;
  std::byte* const to_;
  int64_t begin_ = 0, end_ = 0;  ///< range of the copies in `to`
  bool pinned_ = false;
  DeviceMemory aside_;
  Stream stream_;
  Event ready_, done_;
};

}  // namespace trainctl::cuda
