// The image formats that decode.h uses. They provide headers, and pixels as the file stores them, before the
// orientation is applied.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "engine/train/data/image/exif.h"
#include "engine/train/data/image/image.h"

namespace trainctl {

struct StoredImage {
  ImageSize size;
  Orientation orientation;
};

/// Throws the EnvError of an invalid file: "photos/cat/12.jpg: not a complete JPEG: ...".
[[noreturn]] void fail_image(const std::string& name, const std::string& what);
/// Throws EnvError for 0 pixels, and for more than kMaxImagePixels.
void check_image_size(const std::string& name, const ImageSize& size);

/// Brightness of a color: (R * 19595 + G * 38470 + B * 7471) / 65536, rounded, with the weights 0.299, 0.587 and 0.114.
inline uint8_t luma(int red, int green, int blue) {
  return static_cast<uint8_t>((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16);
}
/// Converts pixels between 1 and 3 channels: gray is repeated, colors become luma.
void convert_channels(const uint8_t* from, int64_t from_channels, int64_t pixels, int64_t channels, uint8_t* to);

/// A file whose headers have been read. Refers to the bytes and the name that it was opened with.
class ImageFile {
 public:
  virtual ~ImageFile() = default;
  virtual StoredImage header() const = 0;
  virtual bool has_scales() const = 0;  ///< it can be decoded at 1/2, 1/4 and 1/8 of its size
  /// May be called once. `region` is in stored pixels, at 1/scale of the full size.
  virtual void decode(int channels, const PixelBox& region, int scale, Image& out) = 0;
};

bool is_jpeg(std::span<const std::byte> file);
std::unique_ptr<ImageFile> open_jpeg(std::span<const std::byte> file, const std::string& name);
bool is_png(std::span<const std::byte> file);
std::unique_ptr<ImageFile> open_png(std::span<const std::byte> file, const std::string& name);

}  // namespace trainctl
