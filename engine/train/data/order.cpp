// See the header.
#include "engine/train/data/order.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/ops/random.h"

namespace trainctl {

void shuffled_order(uint64_t seed, uint64_t pass, std::span<int64_t> order) {
  std::iota(order.begin(), order.end(), int64_t{0});
  const uint64_t key = stream_key(seed, stable_hash("dataset.shuffle"));
  for (uint64_t i = order.size(); i-- > 1;) {
    const uint64_t word = philox(key, i >> 2, pass).v[i & 3];
    std::swap(order[i], order[(word * (i + 1)) >> 32]);
  }
}

std::string order_text(const DatasetSpec& spec, int64_t set_size, uint64_t seed) {
  const bool is_made = spec.type == "random" || spec.type == "clicks";
  std::string text = fmt::format("{} samples", with_commas(set_size));
  if (is_made) text += fmt::format(" made from seed {}", seed);
  if (spec.has_shares()) text += fmt::format(" of a share of {} by seed {}", spec.train_share, seed);
  if (!spec.weights.empty()) text += fmt::format(" mixed by the weights {}", fmt::join(spec.weights, " : "));
  if (!spec.shuffle)
    text += ", not shuffled";
  else if (spec.shuffle_block > 0)
    text += fmt::format(", shuffled in blocks of {} by seed {}", with_commas(spec.shuffle_block), seed);
  else
    text += fmt::format(", shuffled by seed {}", seed);
  if (spec.repeat > 1) text += fmt::format(", {} passes per epoch", spec.repeat);
  return text;
}

SampleOrder::SampleOrder(const DatasetSpec& spec, int64_t set_size, uint64_t seed)
    : size_(set_size),
      repeat_(spec.repeat),
      samples_(capped_product(set_size, spec.repeat)),
      shuffle_(spec.shuffle),
      block_(spec.shuffle_block),
      seed_(seed) {
  require_epoch(spec, set_size);
  steps_ = trainctl::steps_per_epoch(spec, set_size);
  if (shuffle_ && block_ == 0 && size_ <= kMostListedSamples) order_.resize(static_cast<size_t>(size_));
  batch_.resize(static_cast<size_t>(spec.batch));
  passes_.resize(batch_.size());
}

std::span<const int64_t> SampleOrder::batch(int64_t epoch, int64_t step) {
  check(step >= 0 && step < steps_, "a step must be inside its epoch");
  const auto size = static_cast<int64_t>(batch_.size());
  for (int64_t row = 0; row < size; ++row) {
    // From the place back to the epoch's end: their sum may not fit an int64.
    const int64_t left = samples_ - step * size;
    const int64_t place = row < left ? step * size + row : (row - left) % samples_;
    const uint64_t pass =
        static_cast<uint64_t>(epoch) * static_cast<uint64_t>(repeat_) + static_cast<uint64_t>(place / size_);
    passes_[static_cast<size_t>(row)] = pass;
    batch_[static_cast<size_t>(row)] = sample_at(pass, place % size_);
  }
  return batch_;
}

void SampleOrder::start(uint64_t pass) {
  has_order_ = true;
  pass_ = pass;
  if (block_ > 0)
    blocks_.emplace(size_, block_, seed_, pass);
  else if (size_ > kMostListedSamples)
    permutation_.emplace(static_cast<uint64_t>(size_),
                         stream_key(stream_key(seed_, stable_hash("dataset.order")), pass));
  else
    shuffled_order(seed_, pass, order_);
}

int64_t SampleOrder::sample_at(uint64_t pass, int64_t within) {
  if (!shuffle_) return within;
  if (!has_order_ || pass != pass_) start(pass);
  if (blocks_) return blocks_->at(within);
  return permutation_ ? static_cast<int64_t>(permutation_->at(static_cast<uint64_t>(within)))
                      : order_[static_cast<size_t>(within)];
}

}  // namespace trainctl
