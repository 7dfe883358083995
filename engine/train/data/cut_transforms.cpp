// A chain of transforms that is random, cut in two, so that a cache can keep the results of the first part.
#include "engine/train/data/cut_transforms.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/spec/batch_transforms.h"

namespace trainctl {
namespace {

/// Number of transforms of a field before the first random one, or before hwc2chw if that comes earlier: hwc2chw stays
/// with the transforms after it, which depend on its layout.
size_t fixed_transforms(const std::vector<TransformSpec>& all) {
  size_t count = 0;
  while (count < all.size() && !has_random_transforms({all[count]}) && all[count].name != "hwc2chw") ++count;
  return count;
}

/// The transforms of a field, cut in two.
struct FieldChain {
  std::string field;
  std::vector<TransformSpec> all;
  size_t fixed = 0;  ///< how many run before the first random one
  size_t cut = 0;    ///< how many run before the result that is kept
  bool may_keep_bytes = false;
};

/// Cuts the transforms of a field in two. Elementwise maps right before the cut move behind it, because the bytes
/// before them need less memory than their results.
FieldChain chain_of(const std::string& field, const std::vector<SourceField>& from, const DatasetSpec& spec) {
  FieldChain chain;
  chain.field = field;
  chain.all = transforms_of(spec, from, field);
  chain.may_keep_bytes = may_keep_bytes(field, chain.all);
  std::erase_if(chain.all, [](const TransformSpec& transform) { return is_of_batch(transform); });
  chain.cut = chain.fixed = fixed_transforms(chain.all);
  const auto maps = [](const std::string& name) {
    return name == "to_float" || name == "rescale" || name == "normalize";
  };
  while (chain.cut > 0 && maps(chain.all[chain.cut - 1].name)) --chain.cut;
  return chain;
}

/// The job's set with only the transforms before each cut.
DatasetSpec before_cuts(const DatasetSpec& spec, const std::vector<FieldChain>& chains) {
  DatasetSpec before = spec;
  before.transforms.clear();
  for (const FieldChain& chain : chains)
    for (size_t i = 0; i < chain.cut; ++i) {
      before.transforms.push_back(chain.all[i]);
      before.transforms.back().field = chain.field;
    }
  return before;
}

bool is_transformable(ElementType type) {
  return type == ElementType::u8 || type == ElementType::i32 || type == ElementType::f32;
}

class Continued final : public Dataset {
 public:
  Continued(std::unique_ptr<Dataset> inner, std::vector<SampleField> fields,
            std::vector<std::optional<SampleTransforms>> after)
      : inner_(std::move(inner)), fields_(std::move(fields)), after_(std::move(after)) {
    for (size_t i = 0; i < fields_.size(); ++i) {
      fields_[i].type = after_[i] ? after_[i]->result().type : inner_->fields()[i].type;
      fields_[i].map = after_[i] ? after_[i]->byte_map() : inner_->fields()[i].map;
    }
  }
  int64_t size() const override { return inner_->size(); }
  void expect(int64_t sample) const override { inner_->expect(sample); }
  const std::vector<SampleField>& fields() const override { return fields_; }
  std::string where(int64_t sample) const override { return inner_->where(sample); }
  SkippedSamples skipped() const override { return inner_->skipped(); }
  void prepare(ReadState& state) const override {
    inner_->prepare(state);
    state.before.resize(fields_.size());
    state.to_before.resize(fields_.size());
    for (size_t i = 0; i < fields_.size(); ++i)
      if (after_[i]) state.before[i].resize(static_cast<size_t>(inner_->fields()[i].bytes()));
  }

  void read(int64_t sample, ReadState& state, SampleOutputs to) const override {
    if (state.before.size() != fields_.size()) prepare(state);
    for (size_t i = 0; i < fields_.size(); ++i)
      state.to_before[i] = to[i] != nullptr && after_[i] ? state.before[i].data() : to[i];
    const SampleRng start = state.rng;
    inner_->read(sample, state, state.to_before);
    const StageTimer timer(state.seconds, ReadStage::transform);
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (to[i] == nullptr || !after_[i]) continue;
      state.rng = start;
      after_[i]->run(view_of(state.before[i].data(), after_[i]->input().shape), state.rng, state.transforms, to[i]);
    }
  }

 private:
  std::unique_ptr<Dataset> inner_;
  std::vector<SampleField> fields_;
  std::vector<std::optional<SampleTransforms>> after_;
};

}  // namespace

std::optional<CutTransforms> cut_at_first_random(const std::vector<SourceField>& from, const DatasetSpec& spec,
                                                 FieldWays::Bytes bytes) {
  std::vector<FieldChain> chains;
  for (const SourceField& field : from) chains.push_back(chain_of(field.name, from, spec));
  try {
    CutTransforms cut{FieldWays(from, before_cuts(spec, chains)), {}};
    bool are_bytes = true;
    for (size_t i = 0; i < from.size(); ++i) {
      if (cut.before.fields[i].type == ElementType::u8) continue;
      are_bytes = are_bytes && chains[i].cut == chains[i].fixed;
      chains[i].cut = chains[i].fixed;
    }
    if (!are_bytes) cut.before = FieldWays(from, before_cuts(spec, chains));
    for (size_t i = 0; i < from.size(); ++i) {
      const SampleField& field = cut.before.fields[i];
      const FieldChain& chain = chains[i];
      cut.after.emplace_back();
      if (chain.cut == chain.all.size()) continue;
      if (!is_transformable(field.type)) return {};
      const std::vector<TransformSpec> after(chain.all.begin() + static_cast<std::ptrdiff_t>(chain.cut),
                                             chain.all.end());
      cut.after.back().emplace(after, SampleType{field.type, field.shape}, "dataset.transforms",
                               bytes == FieldWays::Bytes::stay && chain.may_keep_bytes);
    }
    return cut;
  } catch (const SpecError&) {  // The field has no fixed shape.
    return {};
  }
}

std::unique_ptr<Dataset> continue_samples(std::unique_ptr<Dataset> inner, std::vector<SampleField> fields,
                                          std::vector<std::optional<SampleTransforms>> after) {
  return std::make_unique<Continued>(std::move(inner), std::move(fields), std::move(after));
}

}  // namespace trainctl
