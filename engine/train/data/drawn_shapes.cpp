// dataset.type shapes: made-up images for segmentation.
#include "engine/train/data/drawn_shapes.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/ops/random.h"
#include "engine/train/data/made_sets.h"

namespace trainctl {
namespace {

constexpr int kMostFigures = 3;
constexpr int64_t kMostColours = 8;  ///< channels with a color of their own; more channels repeat them
constexpr uint64_t kWordsOfFigure = 4 + kMostColours;

/// Maps a 32-bit random word to [0, 1).
double share_of_word(uint32_t word) { return static_cast<double>(word) * 0x1p-32; }

/// A disc, a square or a diamond: class 1, 2 or 3.
struct Figure {
  int64_t kind;
  double row, column, radius;
  std::array<float, kMostColours> colour;

  bool has(int64_t r, int64_t c) const {
    const double down = std::abs(static_cast<double>(r) - row), right = std::abs(static_cast<double>(c) - column);
    if (kind == 1) return down * down + right * right <= radius * radius;
    return (kind == 2 ? std::max(down, right) : down + right) <= radius;
  }
};

class DrawnSet final : public Dataset {
 public:
  DrawnSet(const DatasetSpec& spec, uint64_t seed)
      : size_(made_size(spec)),
        channels_(spec.shape[0]),
        height_(spec.shape[1]),
        width_(spec.shape[2]),
        fields_(as_loaded(drawn_shapes(spec))),
        noise_key_(stream_key(seed, stable_hash("dataset.data"))),
        figure_key_(stream_key(seed, stable_hash("dataset.figures"))) {
    if (spec.takes_validation_share) first_ = kFirstOfValidation;
  }
  int64_t size() const override { return size_; }
  const std::vector<SampleField>& fields() const override { return fields_; }
  void read(int64_t number, ReadState& state, SampleOutputs to) const override {
    const StageTimer timer(state.seconds, ReadStage::read);
    const auto sample = static_cast<uint64_t>(first_ + number);
    std::array<Figure, kMostFigures> figures;
    const int count = draw(sample, figures);
    for (int64_t pixel = 0; pixel < height_ * width_; ++pixel) {
      const Figure* top = nullptr;
      for (int f = 0; f < count; ++f)
        if (figures[f].has(pixel / width_, pixel % width_)) top = &figures[f];
      if (to[1] != nullptr) static_cast<int32_t*>(to[1])[pixel] = static_cast<int32_t>(top == nullptr ? 0 : top->kind);
      if (to[0] == nullptr) continue;
      for (int64_t c = 0; c < channels_; ++c) {
        const int64_t element = c * height_ * width_ + pixel;
        const auto e = static_cast<uint64_t>(element);
        const double noise = 0.4 * share_of_word(philox(noise_key_, e >> 2, sample).v[e & 3]) - 0.2;
        const float colour = top == nullptr ? 0.0f : top->colour[static_cast<size_t>(c % kMostColours)];
        static_cast<float*>(to[0])[element] = colour + static_cast<float>(noise);
      }
    }
  }

 private:
  /// Draws the figures of a sample and returns their number. Later figures cover earlier ones.
  int draw(uint64_t sample, std::array<Figure, kMostFigures>& figures) const {
    const auto word = [&](uint64_t at) { return share_of_word(philox(figure_key_, at >> 2, sample).v[at & 3]); };
    const int count = 1 + static_cast<int>(word(0) * kMostFigures);
    const double side = static_cast<double>(std::min(height_, width_));
    for (int f = 0; f < count; ++f) {
      const uint64_t at = 4 + static_cast<uint64_t>(f) * kWordsOfFigure;
      Figure& figure = figures[f];
      figure.kind = 1 + static_cast<int64_t>(word(at) * static_cast<double>(kDrawnClasses - 1));
      figure.row = word(at + 1) * static_cast<double>(height_);
      figure.column = word(at + 2) * static_cast<double>(width_);
      figure.radius = side * (0.1 + 0.2 * word(at + 3));
      for (uint64_t c = 0; c < kMostColours; ++c) figure.colour[c] = static_cast<float>(0.4 + 0.6 * word(at + 4 + c));
    }
    return count;
  }

  static constexpr int64_t kFirstOfValidation = int64_t{1} << 40;

  int64_t size_, channels_, height_, width_, first_ = 0;
  std::vector<SampleField> fields_;
  uint64_t noise_key_, figure_key_;
};

}  // namespace

DataShapes drawn_shapes(const DatasetSpec& spec) {
  check(spec.shape.size() == 3, "the shape of images has three numbers");
  DataShapes shapes;
  shapes.fields.push_back({"data", spec.shape, false});
  shapes.fields.push_back({"label", {spec.shape[1], spec.shape[2]}, true});
  return shapes;
}

std::unique_ptr<Dataset> make_drawn_set(const DatasetSpec& spec, uint64_t seed) {
  return std::make_unique<DrawnSet>(spec, seed);
}

}  // namespace trainctl
