// See the header.
#include "engine/train/data/order.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

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

void check_epoch_has_steps(const DatasetSpec& spec, int64_t set_size) {
  check(set_size > 0 && spec.batch > 0 && spec.repeat > 0, "set size, batch and repeat must be positive");
  // Divides instead of multiplying: set_size * repeat may overflow an int64.
  const bool fits = set_size >= spec.batch || spec.repeat >= (spec.batch + set_size - 1) / set_size;
  if (fits || !spec.drop_last) return;
  const int64_t samples = set_size * spec.repeat;
  throw SpecError({}, "dataset.batch",
                  fmt::format("a batch of {} does not fit in an epoch of {} samples", spec.batch, with_commas(samples)),
                  fmt::format("at most {}, or dataset.drop_last: false, or a larger dataset.repeat", samples));
}

SampleOrder::SampleOrder(const DatasetSpec& spec, int64_t set_size, uint64_t seed)
    : size_(set_size), batch_(spec.batch), repeat_(spec.repeat), shuffle_(spec.shuffle), seed_(seed) {
  check_epoch_has_steps(spec, set_size);
  const int64_t samples = size_ * repeat_;
  steps_ = spec.drop_last ? samples / batch_ : (samples + batch_ - 1) / batch_;
  order_.resize(static_cast<size_t>(std::max(steps_ * batch_, samples)));
}

std::span<const int64_t> SampleOrder::batch(int64_t epoch, int64_t step) {
  check(step >= 0 && step < steps_, "a step must be inside its epoch");
  if (epoch != epoch_) make_epoch(epoch);
  return std::span(order_).subspan(static_cast<size_t>(step * batch_), static_cast<size_t>(batch_));
}

void SampleOrder::make_epoch(int64_t epoch) {
  for (int64_t pass = 0; pass < repeat_; ++pass) {
    const auto order = std::span(order_).subspan(static_cast<size_t>(pass * size_), static_cast<size_t>(size_));
    if (shuffle_) {
      shuffled_order(seed_, static_cast<uint64_t>(epoch * repeat_ + pass), order);
    } else {
      std::iota(order.begin(), order.end(), int64_t{0});
    }
  }
  const auto samples = static_cast<size_t>(size_ * repeat_);
  for (size_t i = samples; i < order_.size(); ++i) order_[i] = order_[i - samples];
  epoch_ = epoch;
}

}  // namespace trainctl
