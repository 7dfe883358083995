// The samples of the steps of a run, drawn and requested ahead of their use.
#include "engine/train/data/drawn_batches.h"

#include <algorithm>
#include <utility>

#include "engine/train/data/checked_sets.h"
#include "engine/train/files/store/remote_file.h"

namespace trainctl {
namespace {

/// Blocks that were requested, but that no step has used yet, take at most a 16th of the cache. The ranks of a host
/// share the cache.
constexpr int64_t kCacheShare = 16;

}  // namespace

DrawnBatches::DrawnBatches(const DatasetSpec& spec, const Dataset& set, uint64_t seed, int64_t end)
    : order_(spec, set, seed), end_(end), is_remote_(reads_store(spec)) {}

void DrawnBatches::take(int64_t step, std::span<int64_t> samples, std::span<uint64_t> passes) {
  taken_ = step;
  if (!ahead_.empty() && ahead_.front().step == step) {
    std::ranges::copy(ahead_.front().samples, samples.begin());
    std::ranges::copy(ahead_.front().passes, passes.begin());
    blocks_ -= ahead_.front().blocks;
    ahead_.pop_front();
    return;
  }
  ahead_.clear();
  blocks_ = 0;
  const int64_t epoch = step / order_.steps_per_epoch();
  std::ranges::copy(order_.batch(epoch, step % order_.steps_per_epoch()), samples.begin());
  std::ranges::copy(order_.passes(), passes.begin());
}

bool DrawnBatches::has_room() const {
  const auto samples = static_cast<int64_t>(ahead_.size()) * order_.batch_size();
  const int64_t most_blocks = object_store::cache_bytes() / object_store::kBlockBytes / kCacheShare;
  return ahead_.size() < kMostBatches && samples < kMostSamples && blocks_ < most_blocks;
}

void DrawnBatches::request_ahead(const std::function<bool(std::span<const int64_t> samples)>& request) {
  if (!is_remote_ || taken_ < 0) return;
  for (int64_t step = ahead_.empty() ? taken_ + 1 : ahead_.back().step + 1; step < end_ && has_room(); ++step) {
    const std::span samples = order_.batch(step / order_.steps_per_epoch(), step % order_.steps_per_epoch());
    Drawn drawn{step, {samples.begin(), samples.end()}, {order_.passes().begin(), order_.passes().end()}};
    const int64_t before = object_store::requested_blocks();
    const bool goes_on = request(drawn.samples);
    drawn.blocks = object_store::requested_blocks() - before;
    blocks_ += drawn.blocks;
    ahead_.push_back(std::move(drawn));
    if (!goes_on) return;
  }
}

}  // namespace trainctl
