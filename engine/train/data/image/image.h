// A decoded image: u8 [h, w, c], rows from the top, c values per pixel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainctl {

struct ImageSize {
  int64_t height = 0, width = 0;
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

/// A part of an image, in pixels.
struct PixelBox {
  int64_t top = 0, left = 0, height = 0, width = 0;
  bool is_inside(const ImageSize& image) const {
    return top >= 0 && left >= 0 && height <= image.height - top && width <= image.width - left;
  }
  friend bool operator==(const PixelBox&, const PixelBox&) = default;
};

struct ImageView {
  const uint8_t* pixels = nullptr;
  int64_t height = 0, width = 0, channels = 0;
  int64_t stride = 0;  ///< bytes from one row to the next

  const uint8_t* row(int64_t y) const { return pixels + y * stride; }
};

/// An image and its memory. A worker reuses it for all of its images, so the memory grows to the size of the largest.
class Image {
 public:
  /// Resizes the image; its values are then undefined. Invalidates views.
  void resize(int64_t height, int64_t width, int64_t channels) {
    const auto bytes = static_cast<size_t>(height * width * channels);
    if (bytes_.size() < bytes) bytes_.resize(bytes);
    whole_ = {bytes_.data(), height, width, channels, width * channels};
    view_ = whole_;
  }
  /// Makes view() show a box inside the resized image, because decoders write more columns than they are asked for.
  void show(const PixelBox& box) {
    view_ = {whole_.row(box.top) + box.left * whole_.channels, box.height, box.width, whole_.channels, whole_.stride};
  }
  const ImageView& view() const { return view_; }
  /// Returns a row of the resized image.
  uint8_t* row(int64_t y) { return bytes_.data() + y * whole_.stride; }
  int64_t memory_bytes() const { return static_cast<int64_t>(bytes_.capacity()); }

 private:
  std::vector<uint8_t> bytes_;
  ImageView whole_, view_;
};

}  // namespace trainctl
