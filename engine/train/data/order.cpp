// Determines the samples of a step from (seed, epoch, step), so all ranks agree without communication.
#include "engine/train/data/order.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/ops/random.h"
#include "engine/train/data/mixed_set.h"

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
  if (spec.is_mix()) return fmt::format("{} samples of all sources", with_commas(set_size));
  const bool is_made = spec.type == "random" || spec.type == "clicks" || spec.type == "shapes";
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
  if (spec.curriculum != "none")
    text += fmt::format(", by {} in {} passes with noise {}", spec.curriculum, spec.curriculum_epochs,
                        spec.curriculum_noise);
  if (!spec.filter.empty()) text += ", filtered by " + spec.filter;
  if (spec.repeat > 1) text += fmt::format(", {} passes per epoch", spec.repeat);
  return text;
}

std::string order_text(const DatasetSpec& spec, const DataHeader& data, uint64_t seed, int64_t step) {
  if (!spec.has_mixture()) return order_text(spec, data.samples, seed);
  Mixture mixture(spec, data.sources);
  const std::span<const int64_t> drawn = mixture.drawn_before(step);
  std::vector<std::string> parts;
  for (size_t i = 0; i < mixture.size(); ++i)
    if (drawn[i] > 0)
      parts.push_back(fmt::format("{} drawn from {} ({})", with_commas(drawn[i]), spec.sources[i].name,
                                  order_text(spec.sources[i], data.sources[i].samples, seed)));
  return "a mixture of " + join(parts);
}

PassOrder::PassOrder(const DatasetSpec& spec, int64_t size, uint64_t seed, std::vector<int32_t> lengths)
    : size_(size),
      shuffle_(spec.shuffle),
      block_(spec.shuffle_block),
      curriculum_passes_(spec.curriculum == "none" ? 0 : static_cast<uint64_t>(spec.curriculum_epochs)),
      noise_(spec.curriculum_noise),
      seed_(seed),
      lengths_(std::move(lengths)) {
  if (curriculum_passes_ > 0 && size_ > kMostListedSamples)
    throw SpecError(
        {}, "dataset.curriculum",
        fmt::format("orders up to {} samples, but the set has {}", with_commas(kMostListedSamples), with_commas(size_)),
        "remove it");
  if (curriculum_passes_ > 0) check(static_cast<int64_t>(lengths_.size()) == size_, "a curriculum has lengths");
  if (shuffle_ && block_ == 0 && size_ <= kMostListedSamples) order_.resize(static_cast<size_t>(size_));
}

int64_t PassOrder::at(uint64_t pass, int64_t within) {
  if (!shuffle_) return within;
  if (!has_order_ || pass != pass_) start(pass);
  if (blocks_) return blocks_->at(within);
  return permutation_ ? static_cast<int64_t>(permutation_->at(static_cast<uint64_t>(within)))
                      : order_[static_cast<size_t>(within)];
}

void PassOrder::start(uint64_t pass) {
  has_order_ = true;
  pass_ = pass;
  if (pass < curriculum_passes_)
    order_by_length(pass);
  else if (block_ > 0)
    blocks_.emplace(size_, block_, seed_, pass);
  else if (size_ > kMostListedSamples)
    permutation_.emplace(static_cast<uint64_t>(size_),
                         stream_key(stream_key(seed_, stable_hash("dataset.order")), pass));
  else
    shuffled_order(seed_, pass, order_);
}

/// Orders the samples by length. The place of a sample is then moved at random by up to curriculum_noise times the size
/// of the set. Samples of the same length are in random order.
void PassOrder::order_by_length(uint64_t pass) {
  shuffled_order(seed_, pass, order_);
  const auto length = [&](int64_t sample) { return lengths_[static_cast<size_t>(sample)]; };
  std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) { return length(a) < length(b); });
  const uint64_t key = stream_key(seed_, stable_hash("dataset.curriculum"));
  std::vector<std::pair<double, int64_t>> places(order_.size());
  for (size_t i = 0; i < order_.size(); ++i) {
    const double moved = (static_cast<double>(philox(key, i >> 2, pass).v[i & 3]) * 0x1p-31 - 1) * noise_;
    places[i] = {static_cast<double>(i) + moved * static_cast<double>(size_), order_[i]};
  }
  std::stable_sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < order_.size(); ++i) order_[i] = places[i].second;
}

namespace {

std::vector<PassOrder> orders_of(const DatasetSpec& spec, const Dataset& set, uint64_t seed) {
  const auto order = [](const DatasetSpec& one, const Dataset& of, uint64_t key) {
    return PassOrder(one, of.size(), key, one.curriculum == "none" ? std::vector<int32_t>() : of.lengths());
  };
  std::vector<PassOrder> orders;
  if (!spec.has_mixture()) {
    orders.push_back(order(spec, set, seed));
    return orders;
  }
  const std::vector<const Dataset*> sources = set.sources();
  check(sources.size() == spec.sources.size(), "a mixed set has the sources of its job");
  for (size_t i = 0; i < sources.size(); ++i)
    orders.push_back(order(spec.sources[i], *sources[i], source_seed(seed, spec.sources[i].name)));
  return orders;
}

std::vector<SourceHeader> headers_of(const DatasetSpec& spec, const Dataset& set) {
  std::vector<SourceHeader> headers;
  const std::vector<const Dataset*> sources = set.sources();
  for (size_t i = 0; i < sources.size(); ++i)
    headers.push_back({spec.sources[i].name, sources[i]->size(), sources[i]->tokens_per_sample()});
  return headers;
}

}  // namespace

SampleOrder::SampleOrder(const DatasetSpec& spec, int64_t set_size, uint64_t seed)
    : SampleOrder(spec, set_size, seed, {PassOrder(spec, set_size, seed)}) {}

SampleOrder::SampleOrder(const DatasetSpec& spec, const Dataset& set, uint64_t seed)
    : SampleOrder(spec, set.size(), seed, orders_of(spec, set, seed)) {
  if (!spec.has_mixture()) return;
  mixture_.emplace(spec, headers_of(spec, set));
  row_sources_.resize(batch_.size());
}

SampleOrder::SampleOrder(const DatasetSpec& spec, int64_t set_size, uint64_t seed, std::vector<PassOrder> orders)
    : size_(set_size),
      repeat_(spec.repeat),
      samples_(capped_product(set_size, spec.repeat)),
      orders_(std::move(orders)),
      row_key_(stream_key(seed, stable_hash("dataset.mix"))) {
  require_epoch(spec, set_size);
  steps_ = trainctl::steps_per_epoch(spec, set_size);
  batch_.resize(static_cast<size_t>(spec.batch));
  passes_.resize(batch_.size());
}

std::span<const int64_t> SampleOrder::batch(int64_t epoch, int64_t step) {
  check(step >= 0 && step < steps_, "a step must be inside its epoch");
  if (mixture_) {
    draw(epoch * steps_ + step);
    return batch_;
  }
  const auto size = static_cast<int64_t>(batch_.size());
  for (int64_t row = 0; row < size; ++row) {
    // Computed back from the epoch's end, because the sum of the place and the size may not fit an int64.
    const int64_t left = samples_ - step * size;
    const int64_t place = row < left ? step * size + row : (row - left) % samples_;
    const uint64_t pass =
        static_cast<uint64_t>(epoch) * static_cast<uint64_t>(repeat_) + static_cast<uint64_t>(place / size_);
    passes_[static_cast<size_t>(row)] = pass;
    batch_[static_cast<size_t>(row)] = orders_.front().at(pass, place % size_);
  }
  return batch_;
}

/// The batch of a step of a mixture; `step` counts over the whole run.
void SampleOrder::draw(int64_t step) {
  const std::span<const int64_t> before = mixture_->drawn_before(step);
  next_.assign(before.begin(), before.end());
  const std::span<const int64_t> counts = mixture_->counts(step);
  size_t row = 0;
  for (size_t source = 0; source < counts.size(); ++source)
    for (int64_t i = 0; i < counts[source]; ++i) row_sources_[row++] = static_cast<int32_t>(source);
  check(row == row_sources_.size(), "a batch of a mixture is full");
  for (uint64_t i = row_sources_.size(); i-- > 1;) {
    const uint64_t word = philox(row_key_, i >> 2, static_cast<uint64_t>(step)).v[i & 3];
    std::swap(row_sources_[i], row_sources_[(word * (i + 1)) >> 32]);
  }
  std::vector<int64_t>& next = next_;
  for (row = 0; row < row_sources_.size(); ++row) {
    const auto source = static_cast<size_t>(row_sources_[row]);
    PassOrder& order = orders_[source];
    const int64_t number = next[source]++;
    passes_[row] = static_cast<uint64_t>(number / order.size());
    int64_t first = 0;
    for (size_t i = 0; i < source; ++i) first += orders_[i].size();
    batch_[row] = first + order.at(passes_[row], number % order.size());
  }
}

}  // namespace trainctl
