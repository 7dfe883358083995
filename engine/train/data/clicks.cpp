// Synthetic clicks: a data set for networks with tables.
#include "engine/train/data/clicks.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/ops/random.h"
#include "engine/train/data/made_sets.h"

namespace trainctl {
namespace {

/// Maps a 32-bit random word to [0, 1).
double unit(uint32_t word) { return static_cast<double>(word) * 0x1p-32; }

class Clicks final : public Dataset {
 public:
  Clicks(const DatasetSpec& spec, uint64_t seed)
      : size_(made_size(spec)), vocab_(spec.vocab), zipf_(spec.zipf), fields_(as_loaded(click_shapes(spec))) {
    data_key_ = stream_key(seed, stable_hash("dataset.data"));
    ids_key_ = stream_key(seed, stable_hash("dataset.ids"));
    label_key_ = stream_key(seed, stable_hash("dataset.label"));
    weight_key_ = stream_key(seed, stable_hash("dataset.weight_of_id"));
    if (spec.takes_validation_share) first_ = kFirstOfValidation;
  }
  int64_t size() const override { return size_; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t number, ReadState& state, SampleOutputs to) const override {
    const StageTimer timer(state.seconds, ReadStage::read);
    const int64_t sample = first_ + number;
    if (to[0] != nullptr)
      for (int64_t e = 0, n = fields_[0].elements(); e < n; ++e) static_cast<float*>(to[0])[e] = data_of(sample, e);
    if (to[1] != nullptr)
      for (int64_t e = 0, n = fields_[1].elements(); e < n; ++e) static_cast<int32_t*>(to[1])[e] = id_of(sample, e);
    if (to[2] != nullptr) *static_cast<int32_t*>(to[2]) = label_of(sample);
  }

 private:
  static uint32_t word(uint64_t key, int64_t element, int64_t sample) {
    return philox(key, static_cast<uint64_t>(element) >> 2, static_cast<uint64_t>(sample)).v[element & 3];
  }

  float data_of(int64_t sample, int64_t element) const {
    return static_cast<float>(2.0 * unit(word(data_key_, element, sample)) - 1.0);
  }

  /// Draws an id by Zipf's law: applies the inverse of the distribution function with density proportional to x^-zipf
  /// on [1, vocab + 1), and rounds down.
  int32_t id_of(int64_t sample, int64_t element) const {
    const double u = unit(word(ids_key_, element, sample)), end = static_cast<double>(vocab_ + 1), power = 1 - zipf_;
    const double x =
        std::abs(power) < 1e-9 ? std::exp(u * std::log(end)) : std::pow(1 + u * (std::pow(end, power) - 1), 1 / power);
    return static_cast<int32_t>(std::clamp<int64_t>(static_cast<int64_t>(x) - 1, 0, vocab_ - 1));
  }

  int32_t label_of(int64_t sample) const {
    double sum = 0;
    const int64_t n = fields_[1].elements();
    for (int64_t e = 0; e < n; ++e) sum += 3.4 * unit(word(weight_key_, 0, id_of(sample, e))) - 1.7;
    const double logit = 2 * (sum / std::sqrt(static_cast<double>(n)) + static_cast<double>(data_of(sample, 0)));
    return unit(word(label_key_, 0, sample)) < 1 / (1 + std::exp(-logit)) ? 1 : 0;
  }

  static constexpr int64_t kFirstOfValidation = int64_t{1} << 40;

  int64_t size_, vocab_, first_ = 0;
  double zipf_;
  std::vector<SampleField> fields_;
  uint64_t data_key_, ids_key_, label_key_, weight_key_;
};

}  // namespace

DataShapes click_shapes(const DatasetSpec& spec) {
  DataShapes shapes;
  shapes.fields.push_back({"data", spec.shape, false});
  shapes.fields.push_back({"ids", {spec.ids}, true});
  shapes.fields.push_back({"label", {}, true});
  return shapes;
}

std::unique_ptr<Dataset> make_clicks(const DatasetSpec& spec, uint64_t seed) {
  return std::make_unique<Clicks>(spec, seed);
}

}  // namespace trainctl
