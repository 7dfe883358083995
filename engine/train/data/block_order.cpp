// An order of 0 … size - 1 that stays local: samples read at one time are close together.
#include "engine/train/data/block_order.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/ops/random.h"

namespace trainctl {
namespace {

uint64_t key_of(uint64_t seed, std::string_view stream, uint64_t pass) {
  return stream_key(stream_key(seed, stable_hash(stream)), pass);
}

int64_t blocks_of(int64_t size, int64_t block) {
  check(size >= 1 && block >= 1, "an order has numbers, and its blocks too");
  return (size - 1) / block + 1;
}

}  // namespace

BlockOrder::BlockOrder(int64_t size, int64_t block, uint64_t seed, uint64_t pass)
    : size_(size),
      block_(std::min(block, size)),
      blocks_(blocks_of(size, block_)),
      window_key_(key_of(seed, "dataset.window", pass)),
      order_(static_cast<uint64_t>(blocks_), key_of(seed, "dataset.blocks", pass)),
      short_at_(static_cast<int64_t>(order_.place_of(static_cast<uint64_t>(blocks_ - 1)))),
      short_by_(blocks_ * block_ - size) {}

/// The place at which the block at this position of the order begins. For position blocks_ that is size_.
int64_t BlockOrder::start_of(int64_t position) const {
  return position * block_ - (position > short_at_ ? short_by_ : 0);
}

int64_t BlockOrder::position_of(int64_t place) const {
  return (place < start_of(short_at_ + 1) ? place : place + short_by_) / block_;
}

void BlockOrder::enter(int64_t window) {
  window_ = window;
  window_start_ = start_of(window * kWindowBlocks);
  const int64_t end = start_of(std::min((window + 1) * kWindowBlocks, blocks_));
  within_.emplace(static_cast<uint64_t>(end - window_start_), stream_key(window_key_, static_cast<uint64_t>(window)));
}

int64_t BlockOrder::at(int64_t place) {
  check(place >= 0 && place < size_, "a place of an order is below its size");
  const int64_t window = position_of(place) / kWindowBlocks;
  if (window != window_) enter(window);
  const int64_t moved = window_start_ + static_cast<int64_t>(within_->at(static_cast<uint64_t>(place - window_start_)));
  const int64_t position = position_of(moved);
  const auto block = static_cast<int64_t>(order_.at(static_cast<uint64_t>(position)));
  return block * block_ + moved - start_of(position);
}

}  // namespace trainctl
