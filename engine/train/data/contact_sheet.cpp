// Draws samples side by side, as a network sees them.
#include "engine/train/data/contact_sheet.h"

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr int64_t kGap = 2;  ///< Gap between two pictures, in pixels.
constexpr uint8_t kGapGrey = 64;

bool has_channels(int64_t size) { return size == 1 || size == 3; }

}  // namespace

bool is_picture(const Shape& shape) { return shape.size() == 3 && (has_channels(shape[2]) || has_channels(shape[0])); }

ContactSheet::ContactSheet(const Shape& shape, int64_t count) {
  check(is_picture(shape) && count > 0, "a contact sheet is of pictures");
  channels_first_ = !has_channels(shape[2]);
  height_ = shape[channels_first_ ? 1 : 0];
  width_ = shape[channels_first_ ? 2 : 1];
  channels_ = shape[channels_first_ ? 0 : 2];
  columns_ = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(count))));
  const int64_t rows = (count + columns_ - 1) / columns_;
  image_.resize(rows * (height_ + kGap) - kGap, columns_ * (width_ + kGap) - kGap, channels_);
  const ImageView& view = image_.view();
  for (int64_t y = 0; y < view.height; ++y) std::fill_n(image_.row(y), view.width * channels_, kGapGrey);
}

void ContactSheet::draw(int64_t number, std::span<const float> picture) {
  const auto [least, most] = std::minmax_element(picture.begin(), picture.end());
  const float low = *least, scale = *most > low ? 255.0f / (*most - low) : 0.0f;
  const int64_t top = number / columns_ * (height_ + kGap), left = number % columns_ * (width_ + kGap);
  for (int64_t y = 0; y < height_; ++y) {
    uint8_t* to = image_.row(top + y) + left * channels_;
    for (int64_t x = 0; x < width_; ++x)
      for (int64_t c = 0; c < channels_; ++c) {
        const int64_t at = channels_first_ ? (c * height_ + y) * width_ + x : (y * width_ + x) * channels_ + c;
        *to++ = static_cast<uint8_t>(std::lround((picture[static_cast<size_t>(at)] - low) * scale));
      }
  }
}

}  // namespace trainctl
