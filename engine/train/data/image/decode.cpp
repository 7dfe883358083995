// Decodes an image: chooses the format and the region of the stored pixels, and turns them upright.
#include "engine/train/data/image/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/data/image/formats.h"

namespace trainctl {
namespace {

std::unique_ptr<ImageFile> open_file(std::span<const std::byte> file, const std::string& name) {
  if (is_jpeg(file)) return open_jpeg(file, name);
  if (is_png(file)) return open_png(file, name);
  if (file.empty()) fail_image(name, "empty: 0 bytes");
  std::string start;
  for (const std::byte byte : file.first(std::min<size_t>(file.size(), 4)))
    start += fmt::format("{}{:02x}", start.empty() ? "" : " ", static_cast<int>(byte));
  fail_image(name, fmt::format("neither a JPEG (ff d8) nor a PNG (89 50 4e 47): begins with {}", start));
}

ImageSize upright_size(const StoredImage& stored) {
  return stored.orientation.swaps ? ImageSize{stored.size.width, stored.size.height} : stored.size;
}

/// Returns the position of a box of the upright image in the stored image.
PixelBox stored_box(const StoredImage& stored, const PixelBox& box) {
  PixelBox at = stored.orientation.swaps ? PixelBox{box.left, box.top, box.width, box.height} : box;
  if (stored.orientation.reverses_rows) at.top = stored.size.height - at.top - at.height;
  if (stored.orientation.reverses_columns) at.left = stored.size.width - at.left - at.width;
  return at;
}

void turn_upright(const ImageView& stored, const Orientation& orientation, Image& out) {
  const int64_t height = orientation.swaps ? stored.width : stored.height;
  const int64_t width = orientation.swaps ? stored.height : stored.width;
  out.resize(height, width, stored.channels);
  for (int64_t y = 0; y < height; ++y) {
    uint8_t* to = out.row(y);
    for (int64_t x = 0; x < width; ++x, to += stored.channels) {
      int64_t row = orientation.swaps ? x : y, column = orientation.swaps ? y : x;
      if (orientation.reverses_rows) row = stored.height - 1 - row;
      if (orientation.reverses_columns) column = stored.width - 1 - column;
      std::copy_n(stored.row(row) + column * stored.channels, stored.channels, to);
    }
  }
}

/// Returns the box in the image at 1/scale.
PixelBox scaled_box(const PixelBox& box, int64_t scale) {
  const auto up = [scale](int64_t at) { return (at + scale - 1) / scale; };
  const int64_t top = box.top / scale, left = box.left / scale;
  return {top, left, up(box.top + box.height) - top, up(box.left + box.width) - left};
}

}  // namespace

void fail_image(const std::string& name, const std::string& what) { throw EnvError(name + ": " + what); }

void check_image_size(const std::string& name, const ImageSize& size) {
  if (size.height < 1 || size.width < 1)
    fail_image(name, fmt::format("an image of {} x {} pixels", size.width, size.height));
  if (size.height > kMaxImagePixels / size.width)
    fail_image(name, fmt::format("an image of {} x {} pixels; the limit is {}", with_commas(size.width),
                                 with_commas(size.height), with_commas(kMaxImagePixels)));
}

void convert_channels(const uint8_t* from, int64_t from_channels, int64_t pixels, int64_t channels, uint8_t* to) {
  if (from_channels == channels) {
    std::memcpy(to, from, static_cast<size_t>(pixels * channels));
  } else if (channels == 1) {
    for (int64_t i = 0; i < pixels; ++i) to[i] = luma(from[3 * i], from[3 * i + 1], from[3 * i + 2]);
  } else {
    for (int64_t i = 0; i < pixels; ++i) to[3 * i] = to[3 * i + 1] = to[3 * i + 2] = from[i];
  }
}

EncodedImage::EncodedImage(std::span<const std::byte> file, const std::string& name)
    : file_(open_file(file, name)), size_(upright_size(file_->header())) {}

EncodedImage::~EncodedImage() = default;

int EncodedImage::decode(const DecodeRequest& request, Image& out) {
  check(request.channels == 1 || request.channels == 3, "an image is decoded to 1 or 3 channels");
  const StoredImage stored = file_->header();
  const PixelBox region = request.region.value_or(PixelBox{0, 0, size_.height, size_.width});
  check(region.height > 0 && region.width > 0 && region.is_inside(size_), "the region to decode is inside the image");
  const bool is_upright = stored.orientation.is_upright();
  const int scale = file_->has_scales() && is_upright ? request.scale : 1;
  Image turned;
  const PixelBox box = scale > 1 ? scaled_box(region, scale) : stored_box(stored, region);
  file_->decode(request.channels, box, scale, is_upright ? out : turned);
  if (!is_upright) turn_upright(turned.view(), stored.orientation, out);
  return scale;
}

ImageSize image_size(std::span<const std::byte> file, const std::string& name) {
  return EncodedImage(file, name).size();
}

int decode_image(std::span<const std::byte> file, const std::string& name, const DecodeRequest& request, Image& out) {
  return EncodedImage(file, name).decode(request, out);
}

}  // namespace trainctl
