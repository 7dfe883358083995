// Data sets without files: random and constant.
#include "engine/train/data/made_sets.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/ops/random.h"

namespace trainctl {
namespace {

/// Element e of sample s is word e of the stream (seed, "dataset.data" or "dataset.label") at s:
/// floats uniform in [-1, 1), integers uniform in [0, classes).
class Random final : public Dataset {
 public:
  Random(const DatasetSpec& spec, uint64_t seed)
      : size_(made_size(spec)), classes_(spec.classes), fields_(as_loaded(made_shapes(spec))) {
    // Labels without classes belong to a job without a loss (the spec ensures that): they are never read.
    if (classes_ < 1 && fields_.front().is_integer) {
      throw SpecError({}, "dataset.classes",
                      fmt::format("random data of integers need a positive number of classes, "
                                  "not {}",
                                  classes_),
                      "integers are drawn from 0 to classes - 1");
    }
    for (const SampleField& field : fields_) keys_.push_back(stream_key(seed, stable_hash("dataset." + field.name)));
  }
  int64_t size() const override { return size_; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t sample, ReadState& state, SampleOutputs to) const override {
    const StageTimer timer(state.seconds, ReadStage::read);
    for (size_t i = 0; i < fields_.size(); ++i)
      if (to[i] != nullptr) draw(i, sample, to[i]);
  }

 private:
  void draw(size_t field, int64_t sample, void* out) const {
    Philox4 words{};
    for (int64_t e = 0, n = fields_[field].elements(); e < n; ++e) {
      if ((e & 3) == 0) words = philox(keys_[field], static_cast<uint64_t>(e) >> 2, static_cast<uint64_t>(sample));
      const uint32_t word = words.v[e & 3];
      if (fields_[field].is_integer) {
        static_cast<int32_t*>(out)[e] = static_cast<int32_t>((uint64_t{word} * static_cast<uint64_t>(classes_)) >> 32);
      } else {
        static_cast<float*>(out)[e] = 2.0f * (static_cast<float>(word >> 8) * 0x1p-24f) - 1.0f;
      }
    }
  }

  int64_t size_, classes_;
  std::vector<SampleField> fields_;
  std::vector<uint64_t> keys_;  ///< random key of each field
};

class ConstantSet final : public Dataset {
 public:
  explicit ConstantSet(const DatasetSpec& spec)
      : size_(made_size(spec)), fields_(as_loaded(made_shapes(spec))), values_{spec.value, spec.label_value} {}
  int64_t size() const override { return size_; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t, ReadState& state, SampleOutputs to) const override {
    const StageTimer timer(state.seconds, ReadStage::read);
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (to[i] == nullptr) continue;
      const auto count = static_cast<size_t>(fields_[i].elements());
      if (fields_[i].is_integer)
        std::fill_n(static_cast<int32_t*>(to[i]), count, static_cast<int32_t>(values_[i]));
      else
        std::fill_n(static_cast<float*>(to[i]), count, static_cast<float>(values_[i]));
    }
  }

 private:
  int64_t size_;
  std::vector<SampleField> fields_;
  double values_[2];
};

}  // namespace

DataShapes made_shapes(const DatasetSpec& spec) {
  return data_and_label(spec.shape, spec.label_shape, spec.dtype == "i32", spec.label_dtype == "i32");
}

int64_t made_size(const DatasetSpec& spec) { return spec.samples > 0 ? spec.samples : spec.batch; }

std::unique_ptr<Dataset> make_random_set(const DatasetSpec& spec, uint64_t seed) {
  return std::make_unique<Random>(spec, seed);
}

std::unique_ptr<Dataset> make_constant_set(const DatasetSpec& spec) { return std::make_unique<ConstantSet>(spec); }

}  // namespace trainctl
