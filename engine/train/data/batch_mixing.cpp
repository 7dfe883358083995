// dataset.transforms' mixup and cutmix: which rows of a batch are mixed, and how.
#include "engine/train/data/batch_mixing.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/spec/batch_transforms.h"
#include "engine/train/data/source_set.h"

namespace trainctl {
namespace {

[[noreturn]] void fail_in_mixing(const TransformSpec& spec, const std::string& message, const std::string& hint = {}) {
  throw SpecError({}, spec.path, spec.name + ": " + message, hint);
}

std::vector<SourceField> named(const std::vector<SampleField>& fields) {
  std::vector<SourceField> sources;
  for (const SampleField& field : fields) sources.push_back({field.name, Encoding::array, field.type, field.shape});
  return sources;
}

}  // namespace

std::optional<BatchMixing> BatchMixing::of(const DatasetSpec& spec, const std::vector<SampleField>& fields) {
  BatchMixing mixing;
  const TransformSpec* first = nullptr;
  for (size_t i = 0; i < fields.size(); ++i) {
    const std::vector<TransformSpec> own = transforms_of(spec, named(fields), fields[i].name);
    const bool is_chw = std::any_of(own.begin(), own.end(), [](const auto& t) { return t.name == "hwc2chw"; });
    for (const TransformSpec& transform : own) {
      if (!is_of_batch(transform)) {
        if (first != nullptr && mixing.field_ == i)
          fail_in_mixing(transform, "comes after " + first->name + ", which mixes whole batches",
                         "move it before that transform");
        continue;
      }
      if (fields[i].name == "label")
        fail_in_mixing(transform, "applies to a sample field and mixes the label with it",
                       "move it to the transforms of "
                       "that field");
      if (first != nullptr && mixing.field_ != i)
        fail_in_mixing(transform, "mixes a second field", "a job can mix only one field");
      mixing.field_ = i;
      const bool pastes = transform.name == "cutmix";
      mixing.choices_.push_back(
          {pastes, transform.attrs.number("alpha", pastes ? 1.0 : 0.2), transform.attrs.number("p", 1.0)});
      const Shape& shape = fields[i].shape;
      if (fields[i].type != ElementType::f32)
        fail_in_mixing(transform, fmt::format("needs samples of f32, not {}", to_string(fields[i].type)),
                       "add to_float or normalize before it");
      if (pastes && shape.size() != 3)
        fail_in_mixing(transform,
                       fmt::format("needs an image with three dims, but the sample is {}", to_string(shape)));
      if (shape.size() == 3) {
        mixing.channels_first_ = is_chw;
        mixing.image_ = is_chw ? ImageSize{shape[1], shape[2]} : ImageSize{shape[0], shape[1]};
        mixing.channels_ = is_chw ? shape[0] : shape[2];
      }
      mixing.elements_ = fields[i].elements();
      if (first == nullptr)
        first = &*std::find_if(spec.transforms.begin(), spec.transforms.end(),
                               [&](const auto& t) { return t.path == transform.path; });
    }
  }
  if (first == nullptr) return {};
  const auto label = std::find_if(fields.begin(), fields.end(), [](const auto& f) { return f.name == "label"; });
  if (label == fields.end()) fail_in_mixing(*first, "mixes labels too, but the samples have no field 'label'");
  if (label->is_integer || label->type != ElementType::f32)
    fail_in_mixing(*first, "mixes labels too, but the labels of this data set are integers",
                   "use transforms per field, with one-hot labels: {" + fields[mixing.field_].name + ": [..., " +
                       first->name + "], label: [{one_hot: 10}]}");
  mixing.label_ = static_cast<size_t>(label - fields.begin());
  mixing.label_elements_ = label->elements();
  return mixing;
}

std::optional<BatchMixing::Drawn> BatchMixing::draw(SampleRng rng) const {
  for (const Choice& choice : choices_) {
    if (rng.uniform() >= choice.chance) continue;
    return Drawn{choice.pastes, choice.pastes ? draw_cutmix(choice.alpha, image_, rng) : draw_mixup(choice.alpha, rng)};
  }
  return {};
}

void BatchMixing::mix_field(const Drawn& drawn, const float* own, const float* other, float* out) const {
  if (!drawn.pastes) return mix(drawn.mix.share, own, other, elements_, out);
  std::copy_n(own, elements_, out);
  paste_box(drawn.mix.box, other, image_, channels_, channels_first_, out);
}

void BatchMixing::mix_label(const Drawn& drawn, const float* own, const float* other, float* out) const {
  mix(drawn.mix.share, own, other, label_elements_, out);
}

}  // namespace trainctl
