// Computes digests of ranges on the device, and adds up their parts on the host.
#include "engine/runtime/cuda/range_digests.h"

#include <algorithm>

#include "engine/runtime/range_digest.h"

namespace trainctl::cuda {
namespace {

/// A block of a range of the usual size has a few words for each of its threads.
int blocks_for(const std::vector<DigestedRange>& ranges) {
  constexpr int64_t kMost = 128, kWordsOfBlock = 4096;
  int64_t words = 0;
  for (const DigestedRange& range : ranges) words = std::max(words, words_of_bytes(range.bytes));
  return static_cast<int>(std::clamp<int64_t>(ceil_div(words, kWordsOfBlock), 1, kMost));
}

}  // namespace

RangeDigests::RangeDigests(const std::vector<DigestedRange>& ranges)
    : count_(static_cast<int64_t>(ranges.size())), blocks_(blocks_for(ranges)) {
  const int64_t bytes_of_ranges = count_ * static_cast<int64_t>(sizeof(DigestedRange));
  const int64_t bytes_of_parts = count_ * blocks_ * static_cast<int64_t>(sizeof(uint64_t));
  ranges_ = make_device_memory(bytes_of_ranges);
  parts_ = make_device_memory(bytes_of_parts);
  on_host_ = make_pinned_memory(bytes_of_parts);
  done_ = make_event();
  cuda_check(cudaMemcpy(ranges_.get(), ranges.data(), static_cast<size_t>(bytes_of_ranges), cudaMemcpyHostToDevice),
             "cudaMemcpy of the ranges");
  cuda_check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");  // the copy may return before it ends
}

void RangeDigests::begin(cudaStream_t stream) {
  if (count_ == 0) return;
  auto* const parts = static_cast<uint64_t*>(parts_.get());
  enqueue_digests(static_cast<const DigestedRange*>(ranges_.get()), count_, blocks_, parts, stream);
  cuda_check(cudaMemcpyAsync(on_host_.get(), parts, static_cast<size_t>(count_ * blocks_) * sizeof(uint64_t),
                             cudaMemcpyDeviceToHost, stream),
             "cudaMemcpyAsync of digests");
  cuda_check(cudaEventRecord(done_.get(), stream), "cudaEventRecord");
}

std::vector<uint64_t> RangeDigests::wait() const {
  std::vector<uint64_t> sums(static_cast<size_t>(count_));
  if (count_ == 0) return sums;
  cuda_check(cudaEventSynchronize(done_.get()), "cudaEventSynchronize");
  const auto* part = static_cast<const uint64_t*>(on_host_.get());
  for (uint64_t& sum : sums)
    for (int b = 0; b < blocks_; ++b) sum += *part++;
  return sums;
}

}  // namespace trainctl::cuda
