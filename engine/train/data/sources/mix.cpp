// Mixes several data sets into one.
#include "engine/train/data/sources/mix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

constexpr int64_t kPlaces = 10'000;

[[noreturn]] void fail_in_mix(const std::string& what, const std::string& hint) {
  throw SpecError({}, "dataset.weights", what, hint);
}

/// The number of places of each set in the pattern. Shares are rounded down; the sets that lost the most by rounding
/// get one place more.
std::vector<int64_t> shares_of(const std::vector<MixedSet>& sets) {
  double sum = 0;
  for (const MixedSet& set : sets) {
    if (!(set.weight > 0) || !std::isfinite(set.weight))
      fail_in_mix(fmt::format("a weight is {}", set.weight), "weights must be above 0");
    sum += set.weight;
  }
  std::vector<int64_t> shares;
  std::vector<std::pair<double, size_t>> lost;
  int64_t left = kPlaces;
  for (const MixedSet& set : sets) {
    const double exact = set.weight / sum * kPlaces;
    shares.push_back(static_cast<int64_t>(exact));
    lost.emplace_back(static_cast<double>(shares.back()) - exact, lost.size());
    left -= shares.back();
  }
  std::sort(lost.begin(), lost.end());
  for (size_t i = 0; left > 0; ++i, --left) ++shares[lost[i % lost.size()].second];
  for (size_t s = 0; s < sets.size(); ++s)
    if (shares[s] == 0)
      fail_in_mix(fmt::format("the weight {} is less than 1/20,000 of the sum of all weights", sets[s].weight),
                  "use a larger weight");
  return shares;
}

void check_same(const Source& first, const Source& other) {
  const auto describe = [](const Source& set) {
    std::vector<std::string> fields;
    for (const SourceField& field : set.fields())
      fields.push_back(field.encoding == Encoding::image
                           ? field.name + ": image"
                           : fmt::format("{}: {} {}", field.name, to_string(field.type), to_string(field.shape)));
    return join(fields);
  };
  if (describe(first) != describe(other))
    fail_in_mix(fmt::format("the sets have different fields: {} has {}, {} has {}", first.where(0), describe(first),
                            other.where(0), describe(other)),
                "all sets need the same fields in the same order");
  if (first.class_names() != other.class_names())
    fail_in_mix(fmt::format("{} and {} have different classes", first.where(0), other.where(0)),
                "use the same class names in all sets, or set dataset.classes");
}

class Mix : public Source {
 public:
  explicit Mix(std::vector<MixedSet> sets) : sets_(std::move(sets)), shares_(shares_of(sets_)) {
    for (const MixedSet& set : sets_) check_same(*sets_[0].set, *set.set);
    deal_out();
    for (size_t s = 0; s < sets_.size(); ++s) size_ = std::max(size_, places_for(s));
  }

  int64_t size() const override { return size_; }
  const std::vector<SourceField>& fields() const override { return sets_[0].set->fields(); }
  const std::vector<std::string>& class_names() const override { return sets_[0].set->class_names(); }
  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    const Place at = place(sample);
    at.set->read(at.sample, wanted, out);
  }
  void expect(int64_t sample) const override {
    const Place at = place(sample);
    at.set->expect(at.sample);
  }
  std::string where(int64_t sample) const override {
    const Place at = place(sample);
    return at.set->where(at.sample);
  }
  int64_t memory_bytes() const override {
    auto bytes = static_cast<int64_t>(pattern_.capacity() * sizeof(Dealt));
    for (const MixedSet& set : sets_) bytes += set.set->memory_bytes();
    return bytes;
  }

 private:
  /// A place of the pattern: its set, and the number of earlier places of that set.
  struct Dealt {
    uint32_t set, before;
  };
  struct Place {
    const Source* set;
    int64_t sample;
  };

  /// Assigns each place to the set that is furthest behind its share of the places so far.
  void deal_out() {
    std::vector<int64_t> dealt(sets_.size());
    for (int64_t place = 0; place < kPlaces; ++place) {
      size_t next = 0;
      const auto behind = [&](size_t s) { return shares_[s] * (place + 1) - dealt[s] * kPlaces; };
      for (size_t s = 1; s < sets_.size(); ++s)
        if (behind(s) > behind(next)) next = s;
      pattern_.push_back({static_cast<uint32_t>(next), static_cast<uint32_t>(dealt[next]++)});
    }
    check(dealt == shares_, "each set gets its share of the pattern");
  }

  /// The number of places up to the first occurrence of the set's last sample.
  int64_t places_for(size_t s) const {
    const int64_t before = sets_[s].set->size() - 1, patterns = before / shares_[s], rest = before % shares_[s];
    const auto last = std::find_if(pattern_.begin(), pattern_.end(), [&](const Dealt& place) {
      return place.set == s && static_cast<int64_t>(place.before) == rest;
    });
    return capped_sum(capped_product(patterns, kPlaces), last - pattern_.begin() + 1);
  }

  Place place(int64_t sample) const {
    const Dealt& at = pattern_[static_cast<size_t>(sample % kPlaces)];
    const Source* set = sets_[at.set].set.get();
    return {set, (sample / kPlaces * shares_[at.set] + at.before) % set->size()};
  }

  std::vector<MixedSet> sets_;
  std::vector<int64_t> shares_;  ///< share of each set, in kPlaces
  std::vector<Dealt> pattern_;
  int64_t size_ = 0;
};

}  // namespace

std::unique_ptr<Source> open_mix(std::vector<MixedSet> sets) {
  check(!sets.empty(), "a mix has sets");
  return std::make_unique<Mix>(std::move(sets));
}

}  // namespace trainctl
