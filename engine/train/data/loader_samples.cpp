// Looks in the samples of a loader's batches for the labels that count, and for values that are not finite.
#include <algorithm>
#include <cmath>
#include <span>

#include "engine/base/error.h"
#include "engine/train/data/elements.h"
#include "engine/train/data/loader.h"

namespace trainctl {

/// The field with the labels. Labels are counted only if the job has a loss, which needs a label.
const SampleField& Loader::label() const {
  const int field = set_->find("label");
  check(field >= 0, "labels can be counted only if samples have labels");
  return set_->fields()[static_cast<size_t>(field)];
}

/// Counts the labels that are not ignored; a sample without labels counts as one.
int64_t Loader::count_labels(const Batch& batch, BatchLayout::Scratch& scratch) const {
  if (set_->find("label") < 0) return batch.own_rows;  // the loss has none
  const SampleField& field = label();
  if (!options_.ignored_label) return batch.own_rows * field.elements();
  const auto at_field = static_cast<size_t>(&field - set_->fields().data());
  std::ranges::fill(scratch.to, nullptr);
  scratch.to[at_field] = scratch.fields[at_field].data();
  const std::span labels(scratch.labels.data(), static_cast<size_t>(field.elements()));
  int64_t counted = 0;
  for (int64_t row = 0; row < batch.own_rows; ++row) {
    const auto at = static_cast<size_t>(row);
    scratch.state.rng = SampleRng(seed_, batch.passes[at], batch.samples[at]);
    set_->read(batch.samples[at], scratch.state, scratch.to);
    convert_elements(scratch.to[at_field], field.type, field.elements(), DType::i32, labels.data());
    counted += std::count_if(labels.begin(), labels.end(),
                             [ignored = *options_.ignored_label](int32_t value) { return value != ignored; });
  }
  return counted;
}

std::string Loader::extreme_sample() const {
  constexpr float kMost = 1e18f;  // of larger ones the square is infinite
  const Batch& batch = batch_at(released_);
  const std::vector<SampleField>& fields = set_->fields();
  ReadState state;
  set_->prepare(state);
  std::vector<std::vector<std::byte>> bytes;
  for (const SampleField& field : fields) bytes.emplace_back(static_cast<size_t>(field.bytes()));
  std::vector<void*> to;
  for (size_t f = 0; f < fields.size(); ++f) to.push_back(fields[f].is_integer ? nullptr : bytes[f].data());
  std::vector<float> values;
  for (size_t row = 0; row < batch.samples.size(); ++row) {
    state.rng = SampleRng(seed_, batch.passes[row], batch.samples[row]);
    set_->read(batch.samples[row], state, to);
    for (size_t f = 0; f < fields.size(); ++f) {
      if (to[f] == nullptr) continue;
      values.resize(static_cast<size_t>(fields[f].elements()));
      load_field(fields[f], to[f], DType::f32, values.data());
      const auto found = std::find_if(values.begin(), values.end(), [](float v) { return !(std::fabs(v) <= kMost); });
      if (found != values.end())
        return fields[f].name + " of " + set_->where(batch.samples[row]) + " contains " +
               to_string(Value(static_cast<double>(*found)));
    }
  }
  return "";
}

}  // namespace trainctl
