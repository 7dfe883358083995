// Keeps rows of a table on a worker for several batches, so that they are not pulled again.
#include "engine/train/servers/row_cache.h"

#include "engine/base/error.h"

namespace trainctl::servers {

const float* RowCache::find(int32_t id, int64_t batch) const {
  const auto found = places_.find(id);
  if (found == places_.end() || batch - found->second.pulled > cached_batches_) return nullptr;
  return values_.data() + found->second.slot * floats_;
}

float* RowCache::put(int32_t id, int64_t batch) {
  check(pulls_.empty() || pulls_.back().batch <= batch, "rows must be pulled for one batch after another");
  const auto [place, is_new] = places_.try_emplace(id);
  if (is_new && !free_.empty()) {
    place->second.slot = free_.back();
    free_.pop_back();
  } else if (is_new) {
    place->second.slot = static_cast<int64_t>(values_.size()) / floats_;
    values_.resize(values_.size() + static_cast<size_t>(floats_));
  }
  place->second.pulled = batch;
  pulls_.push_back({id, batch});
  return values_.data() + place->second.slot * floats_;
}

void RowCache::drop_before(int64_t batch) {
  for (; !pulls_.empty() && batch - pulls_.front().batch > cached_batches_; pulls_.pop_front()) {
    const auto place = places_.find(pulls_.front().id);
    if (place == places_.end() || place->second.pulled != pulls_.front().batch) continue;  // pulled again since
    free_.push_back(place->second.slot);
    places_.erase(place);
  }
}

}  // namespace trainctl::servers
