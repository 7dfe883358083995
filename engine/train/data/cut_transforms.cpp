// See the header.
#include "engine/train/data/cut_transforms.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/spec/batch_transforms.h"

namespace trainctl {
namespace {

/// How many of a field's transforms come before chance. hwc2chw stays with those behind it, which must know of it.
size_t fixed_transforms(const std::vector<TransformSpec>& all) {
  size_t count = 0;
  while (count < all.size() && !has_random_transforms({all[count]}) && all[count].name != "hwc2chw") ++count;
  return count;
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
  DatasetSpec before = spec;
  before.transforms.clear();
  std::vector<std::vector<TransformSpec>> after;
  std::vector<bool> keeps_bytes;
  for (const SourceField& field : from) {
    std::vector<TransformSpec> all = transforms_of(spec, from, field.name);
    keeps_bytes.push_back(bytes == FieldWays::Bytes::stay && may_keep_bytes(field.name, all));
    std::erase_if(all, [](const TransformSpec& transform) { return is_of_batch(transform); });
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(fixed_transforms(all));
    for (auto at = all.begin(); at != middle; ++at) {
      before.transforms.push_back(*at);
      before.transforms.back().field = field.name;
    }
    after.emplace_back(middle, all.end());
  }
  try {
    CutTransforms cut{FieldWays(from, before), {}};
    for (size_t i = 0; i < from.size(); ++i) {
      const SampleField& field = cut.before.fields[i];
      cut.after.emplace_back();
      if (after[i].empty()) continue;
      if (!is_transformable(field.type)) return {};
      cut.after.back().emplace(after[i], SampleType{field.type, field.shape}, "dataset.transforms", keeps_bytes[i]);
    }
    return cut;
  } catch (const SpecError&) {  // no fixed shape
    return {};
  }
}

std::unique_ptr<Dataset> continue_samples(std::unique_ptr<Dataset> inner, std::vector<SampleField> fields,
                                          std::vector<std::optional<SampleTransforms>> after) {
  return std::make_unique<Continued>(std::move(inner), std::move(fields), std::move(after));
}

}  // namespace trainctl
