// Digests of ranges of memory (range_digest.h), computed by the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/runtime/cuda/handles.h"

namespace trainctl::cuda {

/// Memory that the device reads.
struct DigestedRange {
  const std::byte* at = nullptr;
  int64_t bytes = 0;
};

/// parts[r * blocks + b] = the part of block b in the digest of range r.
void enqueue_digests(const DigestedRange* ranges, int64_t count, int blocks, uint64_t* parts, cudaStream_t stream);

class RangeDigests {
 public:
  explicit RangeDigests(const std::vector<DigestedRange>& ranges);

  /// Computes the digests of the ranges as they are after the work of `stream` so far.
  void begin(cudaStream_t stream);
  /// Waits for the last begin. In the order of the ranges.
  std::vector<uint64_t> wait() const;

 private:
  int64_t count_ = 0;
  int blocks_ = 1;  ///< per range
  DeviceMemory ranges_, parts_;
  PinnedMemory on_host_;
  Event done_;
};

}  // namespace trainctl::cuda
