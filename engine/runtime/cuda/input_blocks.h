// Pinned host memory for a step's inputs, followed by its scalars, so that one copy moves both.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/runtime/cuda/handles.h"
#include "engine/runtime/executor.h"

namespace trainctl::cuda {

class InputBlocks {
 public:
  HostBlock allocate(int64_t bytes) {
    auto memory = std::make_shared<PinnedMemory>(make_pinned_memory(bytes));
    auto* block = static_cast<std::byte*>(memory->get());
    {
      const std::lock_guard lock(ours_->mutex);
      ours_->blocks.push_back(block);
    }
    return {block, [memory, ours = ours_](std::byte* freed) {
              const std::lock_guard lock(ours->mutex);
              std::erase(ours->blocks, freed);
            }};
  }

  /// `inputs` itself if it is one of our blocks and no other step in flight uses it, else a copy of its `bytes` in the
  /// slot's own block.
  std::byte* sendable(const std::byte* inputs, int64_t bytes, int64_t stride, int slot, int slots) {
    in_flight_.resize(static_cast<size_t>(slots));
    in_flight_[static_cast<size_t>(slot)] = nullptr;
    const bool busy = std::find(in_flight_.begin(), in_flight_.end(), inputs) != in_flight_.end();
    if (inputs != nullptr && !busy && is_ours(inputs)) {
      in_flight_[static_cast<size_t>(slot)] = inputs;
      return const_cast<std::byte*>(inputs);
    }
    if (!copies_) copies_ = make_pinned_memory(stride * slots);
    auto* copy = static_cast<std::byte*>(copies_.get()) + slot * stride;
    if (inputs != nullptr) std::memcpy(copy, inputs, static_cast<size_t>(bytes));
    return copy;
  }

 private:
  /// Outlives the executor if a loader still holds a block.
  struct Ours {
    std::mutex mutex;
    std::vector<const std::byte*> blocks;
  };

  bool is_ours(const std::byte* block) const {
    const std::lock_guard lock(ours_->mutex);
    return std::find(ours_->blocks.begin(), ours_->blocks.end(), block) != ours_->blocks.end();
  }

  std::shared_ptr<Ours> ours_ = std::make_shared<Ours>();
  std::vector<const std::byte*> in_flight_;  ///< by slot
  PinnedMemory copies_;
};

}  // namespace trainctl::cuda
