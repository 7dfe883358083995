// Computes how many samples of each source of a mixture (dataset.type mix) each step draws.
#include "engine/planning/mixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

constexpr int kUnitBits = 32;
constexpr int64_t kWhole = int64_t{1} << kUnitBits;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
/// The state of the mixture is stored at intervals of this many steps, so that a later request for an earlier step can
/// start from it.
constexpr int64_t kKeepEvery = 1024;

double sum_of(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

/// Returns the values as fractions of their sum.
std::vector<double> normalized(std::vector<double> values) {
  const double sum = sum_of(values);
  for (double& value : values) value = sum > 0 ? value / sum : 0;
  return values;
}

int64_t scaled(int64_t value, int64_t times, int64_t over) {
  __extension__ using Wide = __int128;
  return static_cast<int64_t>(static_cast<Wide>(value) * times / over);
}

}  // namespace

Mixture::Mixture(const DatasetSpec& spec, std::vector<SourceHeader> sources)
    : sources_(std::move(sources)),
      by_tokens_(spec.mix_by == "tokens"),
      power_(1 / spec.temperature),
      batch_(spec.batch) {
  check(sources_.size() == spec.sources.size() && !sources_.empty(), "a mixture has the sources of its job");
  for (size_t i = 0; i < sources_.size(); ++i) {
    const double epochs = spec.sources[i].max_epochs;
    const double most = std::floor(epochs * static_cast<double>(sources_[i].samples));
    limits_.push_back(epochs > 0 && most < 9e18 ? static_cast<int64_t>(most) : kNoLimit);
    if (by_tokens_ && !(sources_[i].tokens > 0))
      throw SpecError({}, "dataset.mix_by", "the samples of source '" + sources_[i].name + "' have no tokens",
                      "set mix_by: samples");
  }
  if (spec.mix.empty()) {
    for (const SourceHeader& source : sources_)
      first_.push_back(static_cast<double>(source.samples) * (by_tokens_ ? source.tokens : 1));
  } else {
    first_ = weights_of(spec.mix);
  }
  for (const ShareChange& change : spec.mix_schedule)
    changes_.push_back({change.step, change.ramp, weights_of(change.shares)});
  at_.drawn.resize(size());
  at_.credit.resize(size());
  at_.counts.resize(size());
  kept_.emplace(0, at_);
}

std::optional<int64_t> Mixture::limit(size_t source) const {
  if (limits_[source] == kNoLimit) return {};
  return limits_[source];
}

std::vector<double> Mixture::weights_of(const std::vector<SourceShare>& shares) const {
  std::vector<double> weights(size());
  for (const SourceShare& share : shares)
    for (size_t i = 0; i < size(); ++i)
      if (sources_[i].name == share.source) weights[i] += share.share;
  return weights;
}

/// Returns the shares of the job at a step, after applying dataset.temperature.
std::vector<double> Mixture::weights_at(int64_t step) const {
  const auto heated = [&](std::vector<double> weights) {
    weights = normalized(std::move(weights));
    for (double& weight : weights) weight = weight > 0 ? std::pow(weight, power_) : 0;
    return normalized(std::move(weights));
  };
  std::vector<double> weights = heated(first_);
  for (const Change& change : changes_) {
    if (step < change.step) break;
    const std::vector<double> to = heated(change.weights);
    const double done =
        change.ramp == 0
            ? 1
            : std::min(1.0, static_cast<double>(step - change.step + 1) / static_cast<double>(change.ramp));
    for (size_t i = 0; i < size(); ++i) weights[i] += (to[i] - weights[i]) * done;
  }
  return weights;
}

std::vector<double> Mixture::shares(int64_t step) const {
  std::vector<double> shares = weights_at(step);
  if (by_tokens_)
    for (size_t i = 0; i < size(); ++i) shares[i] /= sources_[i].tokens;
  return normalized(std::move(shares));
}

std::span<const int64_t> Mixture::drawn_before(int64_t step) {
  seek(step);
  return at_.drawn;
}

std::span<const int64_t> Mixture::counts(int64_t step) {
  seek(step);
  const State before = at_;
  advance();
  std::vector<int64_t> counts = at_.counts;
  at_ = before;
  at_.counts = std::move(counts);
  return at_.counts;
}

void Mixture::seek(int64_t step) {
  if (step < at_.step) at_ = std::prev(kept_.upper_bound(step))->second;
  while (at_.step < step) {
    advance();
    if (at_.step % kKeepEvery == 0) kept_.emplace(at_.step, at_);
  }
}

/// Determines how many samples of each source the next step draws. Each source has a credit that grows by its share;
/// what is drawn is subtracted, so that the counts follow the shares over the steps.
void Mixture::advance() {
  const int64_t step = at_.step;
  if (step < units_from_ || step >= units_to_) {
    units_.clear();
    for (const double share : shares(step)) units_.push_back(std::llround(share * static_cast<double>(kWhole)));
    units_from_ = step;
    units_to_ = kNoLimit;
    for (const Change& change : changes_) {
      if (step < change.step)
        units_to_ = std::min(units_to_, change.step);
      else if (step < change.step + change.ramp)
        units_to_ = std::min(units_to_, step + 1);
    }
  }
  const auto left = [&](size_t i) { return units_[i] == 0 ? 0 : limits_[i] - at_.drawn[i]; };
  int64_t sum = 0;
  for (size_t i = 0; i < size(); ++i) sum += left(i) > 0 ? units_[i] : 0;
  int64_t total = 0;
  for (size_t i = 0; i < size(); ++i) {
    at_.credit[i] = left(i) > 0 ? at_.credit[i] + scaled(units_[i], batch_ * kWhole, sum) : 0;
    at_.counts[i] = std::clamp<int64_t>(at_.credit[i] >> kUnitBits, 0, left(i));
    total += at_.counts[i];
  }
  const auto rest = [&](size_t i) { return at_.credit[i] - (at_.counts[i] << kUnitBits); };
  for (; total != batch_; total += total < batch_ ? 1 : -1) {
    std::optional<size_t> best;
    const bool adds = total < batch_;
    for (size_t i = 0; i < size(); ++i) {
      if (adds ? left(i) <= at_.counts[i] : at_.counts[i] == 0) continue;
      if (!best || (adds ? rest(i) > rest(*best) : rest(i) < rest(*best))) best = i;
    }
    if (!best)
      throw SpecError(
          {}, "dataset.sources",
          fmt::format("the sources have no sample left for step {}: each has reached its max_epochs, or has "
                      "no share",
                      with_commas(step + 1)),
          "raise max_epochs, or set train.steps to stop earlier");
    at_.counts[*best] += adds ? 1 : -1;
  }
  for (size_t i = 0; i < size(); ++i) {
    at_.credit[i] -= at_.counts[i] << kUnitBits;
    at_.drawn[i] += at_.counts[i];
  }
  ++at_.step;
}

}  // namespace trainctl
