// dataset.noise_steps: samples for diffusion models (Ho et al. 2020), made by adding noise to those of another set.
#include "engine/train/data/noised_set.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

/// a(t) of the cosine schedule, with betas of at most 0.999.
std::vector<double> cosine_levels(int64_t steps) {
  const auto f = [&](int64_t t) {
    const double angle = (static_cast<double>(t) / static_cast<double>(steps) + 0.008) / 1.008 * std::numbers::pi / 2;
    return std::cos(angle) * std::cos(angle);
  };
  std::vector<double> levels;
  double level = 1;
  for (int64_t t = 0; t < steps; ++t) {
    level *= 1 - std::min(0.999, 1 - f(t + 1) / f(t));
    levels.push_back(level);
  }
  return levels;
}

std::vector<double> linear_levels(int64_t steps, double first, double last) {
  std::vector<double> levels;
  double level = 1;
  for (int64_t t = 0; t < steps; ++t) {
    const double share = steps > 1 ? static_cast<double>(t) / static_cast<double>(steps - 1) : 0.0;
    level *= 1 - (first + share * (last - first));
    levels.push_back(level);
  }
  return levels;
}

const DataField* class_field(const DataShapes& inner) {
  for (const DataField& field : inner.fields)
    if (field.name == "label") return field.is_integer && field.shape.empty() ? &field : nullptr;
  return nullptr;
}

class NoisedSet final : public Dataset {
 public:
  NoisedSet(std::unique_ptr<Dataset> inner, const DatasetSpec& spec)
      : inner_(std::move(inner)), levels_(spec), fields_(as_loaded(noised_shapes(inner_->shapes()))) {
    for (const SampleField& field : fields_)
      sources_.push_back(field.name == "label" || field.name == "timestep" ? -1
                         : field.name == "class"                           ? inner_->find("label")
                                                                           : inner_->find(field.name));
  }

  int64_t size() const override { return inner_->size(); }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void prepare(ReadState& state) const override { inner_->prepare(state); }
  void expect(int64_t sample) const override { inner_->expect(sample); }
  std::string where(int64_t sample) const override { return inner_->where(sample); }
  SkippedSamples skipped() const override { return inner_->skipped(); }

  void read(int64_t sample, ReadState& state, SampleOutputs to) const override {
    SampleRng rng = state.rng.of_source(stable_hash("dataset.noise"), sample);
    const int64_t step = rng.integer(static_cast<int64_t>(levels_.signal.size()));
    read_inner(sample, state, to);
    const StageTimer timer(state.seconds, ReadStage::transform);
    const int64_t n = fields_[0].elements();
    auto* const data = static_cast<float*>(to[0]);
    for (size_t f = 1; f < fields_.size(); ++f) {
      if (to[f] == nullptr) continue;
      if (fields_[f].name == "timestep") *static_cast<int32_t*>(to[f]) = static_cast<int32_t>(step);
    }
    auto* const label = static_cast<float*>(to[label_]);
    if (data == nullptr && label == nullptr) return;
    const float signal = levels_.signal[static_cast<size_t>(step)], noise = levels_.noise[static_cast<size_t>(step)];
    for (int64_t i = 0; i < n; i += 2) {
      // Box and Muller (1958): two normal numbers of two uniform ones.
      const double radius = std::sqrt(-2 * std::log(1 - rng.uniform())), angle = 2 * std::numbers::pi * rng.uniform();
      const float pair[] = {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))};
      for (int64_t k = i; k < std::min(i + 2, n); ++k) {
        if (label != nullptr) label[k] = pair[k - i];
        if (data != nullptr) data[k] = signal * data[k] + noise * pair[k - i];
      }
    }
  }

 private:
  /// The fields that come from the set within, converted to the types in which devices load them.
  void read_inner(int64_t sample, ReadState& state, SampleOutputs to) const {
    const std::vector<SampleField>& fields = inner_->fields();
    thread_local std::vector<std::vector<std::byte>> bytes;
    thread_local std::vector<void*> wanted;
    bytes.resize(std::max(bytes.size(), fields.size()));
    wanted.assign(fields.size(), nullptr);
    for (size_t f = 0; f < fields_.size(); ++f) {
      if (to[f] == nullptr || sources_[f] < 0) continue;
      const auto from = static_cast<size_t>(sources_[f]);
      bytes[from].resize(std::max(bytes[from].size(), static_cast<size_t>(fields[from].bytes())));
      wanted[from] = bytes[from].data();
    }
    inner_->read(sample, state, wanted);
    for (size_t f = 0; f < fields_.size(); ++f)
      if (to[f] != nullptr && sources_[f] >= 0)
        load_field(fields[static_cast<size_t>(sources_[f])], wanted[static_cast<size_t>(sources_[f])],
                   fields_[f].is_integer ? DType::i32 : DType::f32, to[f]);
  }

  std::unique_ptr<Dataset> inner_;
  NoiseLevels levels_;
  std::vector<SampleField> fields_;
  std::vector<int> sources_;  ///< by field: the field of the set within; -1: made here
  size_t label_ = 1;
};

}  // namespace

NoiseLevels::NoiseLevels(const DatasetSpec& spec) {
  const std::vector<double> levels =
      spec.noise_schedule == "cosine"
          ? cosine_levels(spec.noise_steps)
          : linear_levels(spec.noise_steps, spec.noise_betas.front(), spec.noise_betas.back());
  for (const double level : levels) {
    signal.push_back(static_cast<float>(std::sqrt(level)));
    noise.push_back(static_cast<float>(std::sqrt(1 - level)));
  }
}

DataShapes noised_shapes(const DataShapes& inner) {
  const DataField& first = inner.fields.front();
  if (first.is_integer || first.name == "label")
    throw SpecError({}, "dataset.noise_steps",
                    "noise is added to the first field of a sample, but '" + first.name + "' does not contain floats",
                    "remove noise_steps");
  DataShapes shapes;
  shapes.fields.push_back(first);
  shapes.fields.push_back({"label", first.shape, false});
  shapes.fields.push_back({"timestep", {}, true});
  if (const DataField* field = class_field(inner)) shapes.fields.push_back({"class", field->shape, true});
  for (size_t f = 1; f < inner.fields.size(); ++f)
    if (inner.fields[f].name != "label") shapes.fields.push_back(inner.fields[f]);
  return shapes;
}

std::unique_ptr<Dataset> add_noise(std::unique_ptr<Dataset> inner, const DatasetSpec& spec) {
  return std::make_unique<NoisedSet>(std::move(inner), spec);
}

}  // namespace trainctl
