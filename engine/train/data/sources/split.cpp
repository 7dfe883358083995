// One part of a data set (dataset.split): splits samples by number or by the hash of a file name.
#include "engine/train/data/sources/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/ops/random.h"
#include "engine/train/data/permutation.h"
#include "engine/train/data/sources/names_hint.h"

namespace trainctl {
namespace {

constexpr int64_t kSplitBlock = 10'000;  ///< samples that are dealt out together; the least share is one of them

/// The places [begin, end) that one part has in each block.
struct Share {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool has(int64_t place) const { return place >= begin && place < end; }
};

[[noreturn]] void fail_in_split(const std::string& what, const std::string& hint) {
  throw SpecError({}, "dataset.split", what, hint);
}

/// The range of hash values, in units of 1 / kSplitBlock, whose samples belong to the part.
Share share_of(const SplitOptions& options) {
  double sum = 0;
  Share found;
  std::vector<std::string> names;
  for (const auto& [name, share] : options.parts) {
    if (!(share >= 0))
      fail_in_split(fmt::format("the fraction of '{}' is {}", name, share),
                    "fractions must be positive "
                    "and add up to 1");
    const int64_t begin = std::llround(sum * kSplitBlock);
    sum += share;
    if (name == options.part) found = {begin, std::llround(std::min(sum, 1.0) * kSplitBlock)};
    names.push_back(name);
  }
  if (std::abs(sum - 1) > 1e-6)
    fail_in_split(fmt::format("the fractions add up to {}", sum),
                  "fractions must be positive "
                  "and add up to 1");
  if (std::find(names.begin(), names.end(), options.part) == names.end())
    fail_in_split(fmt::format("there is no part '{}'", options.part), names_hint("parts", names, options.part));
  if (found.size() == 0)
    fail_in_split(fmt::format("the fraction of '{}' is too small", options.part), "use at least 0.0001");
  return found;
}

/// The base of sources that have some of the samples of `inner`.
class SplitPart : public Source {
 public:
  explicit SplitPart(std::shared_ptr<const Source> inner) : inner_(std::move(inner)) {}
  const std::vector<SourceField>& fields() const override { return inner_->fields(); }
  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    inner_->read(inner_sample(sample), wanted, out);
  }
  void expect(int64_t sample) const override { inner_->expect(inner_sample(sample)); }
  std::string where(int64_t sample) const override { return inner_->where(inner_sample(sample)); }
  const std::vector<std::string>& class_names() const override { return inner_->class_names(); }

 protected:
  virtual int64_t inner_sample(int64_t sample) const = 0;
  std::shared_ptr<const Source> inner_;
};

/// Divides the set by sample number. A permutation that is keyed by the block's number orders the samples of each
/// block; the part has a fixed range of the places in this order.
class PartByNumber : public SplitPart {
 public:
  PartByNumber(std::shared_ptr<const Source> inner, Share share, uint64_t key)
      : SplitPart(std::move(inner)), share_(share), key_(key) {
    const int64_t rest = inner_->size() % kSplitBlock, blocks = inner_->size() / kSplitBlock;
    for (int64_t place = share.begin; place < share.end; ++place)  // The last block may not be full.
      if (const int64_t within = at(blocks, place); within < rest) last_.push_back(static_cast<int32_t>(within));
    whole_ = blocks * share.size();
  }
  int64_t size() const override { return whole_ + static_cast<int64_t>(last_.size()); }
  int64_t memory_bytes() const override {
    return inner_->memory_bytes() + static_cast<int64_t>(last_.capacity() * sizeof(int32_t));
  }

 private:
  /// The sample that is at a place in the order of a block.
  int64_t at(int64_t block, int64_t place) const {
    const KeyedPermutation order(kSplitBlock, stream_key(key_, static_cast<uint64_t>(block)));
    return static_cast<int64_t>(order.at(static_cast<uint64_t>(place)));
  }
  int64_t inner_sample(int64_t sample) const override {
    const int64_t block = sample / share_.size();
    if (sample >= whole_)
      return inner_->size() / kSplitBlock * kSplitBlock + last_[static_cast<size_t>(sample - whole_)];
    return block * kSplitBlock + at(block, share_.begin + sample % share_.size());
  }

  Share share_;
  uint64_t key_;
  std::vector<int32_t> last_;  ///< samples of the last block
  int64_t whole_ = 0;          ///< samples of this part in whole blocks
};

/// The part of a path below one of the folders. For a file in none of them, the name of its folder and its own name.
std::string_view name_below(std::string_view path, const std::vector<std::string>& folders) {
  for (std::string_view folder : folders) {
    while (folder.ends_with('/')) folder.remove_suffix(1);
    if (!path.starts_with(folder) || !path.substr(folder.size()).starts_with('/')) continue;
    path.remove_prefix(folder.size());
    return path.substr(std::min(path.find_first_not_of('/'), path.size()));
  }
  const size_t name = path.rfind('/');
  if (name == std::string_view::npos || name == 0) return path.substr(name + 1);
  return path.substr(path.rfind('/', name - 1) + 1);
}

class PartByName : public SplitPart {
 public:
  PartByName(std::shared_ptr<const Source> inner, Share share, uint64_t key, const std::vector<std::string>& folders)
      : SplitPart(std::move(inner)) {
    constexpr int64_t kMost = int64_t{1} << 32;
    if (inner_->size() > kMost)
      fail_in_split(fmt::format("{} samples are too many for a split by name", with_commas(inner_->size())),
                    "split by number instead");
    for (int64_t sample = 0; sample < inner_->size(); ++sample) {
      const std::string where = inner_->where(sample);
      const uint64_t name = stable_hash(name_below(where, folders));
      const auto place = static_cast<int64_t>((uint64_t{philox(key, name, 0).v[0]} * kSplitBlock) >> 32);
      if (share.has(place)) samples_.push_back(static_cast<uint32_t>(sample));
    }
    samples_.shrink_to_fit();
  }
  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }
  int64_t memory_bytes() const override {
    return inner_->memory_bytes() + static_cast<int64_t>(samples_.capacity() * sizeof(uint32_t));
  }

 private:
  int64_t inner_sample(int64_t sample) const override { return samples_[static_cast<size_t>(sample)]; }

  std::vector<uint32_t> samples_;
};

}  // namespace

std::unique_ptr<Source> open_split(std::shared_ptr<const Source> set, const SplitOptions& options) {
  const Share share = share_of(options);
  const uint64_t key = stream_key(options.seed, stable_hash("dataset.split"));
  const int64_t samples = set->size();
  std::unique_ptr<Source> part;
  if (options.by_name)
    part = std::make_unique<PartByName>(std::move(set), share, key, options.folders);
  else
    part = std::make_unique<PartByNumber>(std::move(set), share, key);
  if (part->size() == 0)
    fail_in_split(fmt::format("the part '{}' contains none of the {} samples", options.part, with_commas(samples)),
                  "use a larger fraction, or more samples");
  return part;
}

}  // namespace trainctl
