// Decodes JPEG and PNG files to u8 [h, w, c]. The rules are the same for both formats:
//
//   orientation   EXIF data (JPEG's APP1, PNG's eXIf) is applied; sizes and regions refer to the upright image
//   gray          becomes three equal channels; one channel of a color image is 0.299 R + 0.587 G + 0.114 B (JPEG: Y)
//   CMYK, YCCK    R = C * K / 255, where C and K are stored inverted, as Adobe does and Pillow assumes
//   alpha         dropped; the stored color is used unchanged
//   16 bits       x * 255 / 65535, rounded; 1, 2 and 4 bits are scaled to 0..255; palettes become colors
//   gamma, color profiles: not applied
//
// A file that is not an image, is truncated, damaged, or larger than kMaxImagePixels causes an EnvError. A JPEG
// counts as truncated without its end marker, and a PNG without its IEND chunk. Other data below the region is not
// read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/train/data/image/image.h"

namespace trainctl {

/// A header may state any size, so larger images are refused before memory is allocated.
inline constexpr int64_t kMaxImagePixels = int64_t{1} << 26;

struct DecodeRequest {
  int channels = 3;                ///< 1 or 3
  std::optional<PixelBox> region;  ///< must be inside the upright image; nullopt: all of it
  /// 1, 2, 4 or 8: decodes a JPEG at 1/scale of its size, from fewer coefficients. The region is still in pixels of the
  /// full-size image. The result has the rows [top / scale, ceil((top + height) / scale)), and the columns likewise.
  /// Has no effect on a PNG.
  int scale = 1;
};

class ImageFile;  ///< formats.h

/// An image file whose headers have been read, but not its pixels. It refers to the bytes and the name (for errors)
/// that it was opened with; both must outlive it. It is not thread-safe.
class EncodedImage {
 public:
  EncodedImage(std::span<const std::byte> file, const std::string& name);
  ~EncodedImage();
  EncodedImage(const EncodedImage&) = delete;

  const ImageSize& size() const { return size_; }  ///< upright
  /// May be called once. At scale 1 the result equals that region of the whole decoded image, bit for bit. Returns the
  /// scale of the result, which is 1 or that of the request.
  int decode(const DecodeRequest& request, Image& out);

 private:
  std::unique_ptr<ImageFile> file_;
  ImageSize size_;
};

/// Reads the upright size; reads only headers.
ImageSize image_size(std::span<const std::byte> file, const std::string& name);
/// Opens and decodes an image; the same as EncodedImage::decode.
int decode_image(std::span<const std::byte> file, const std::string& name, const DecodeRequest& request, Image& out);

}  // namespace trainctl
