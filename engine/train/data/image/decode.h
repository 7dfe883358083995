// JPEG and PNG files to u8 [h, w, c], by one rule for every kind of file:
//
//   orientation   as EXIF says: the image is upright, and so are sizes and regions (JPEG's APP1, PNG's eXIf)
//   grey          three equal channels; of a colour image, one channel is 0.299 R + 0.587 G + 0.114 B (JPEG: its Y)
//   CMYK, YCCK    R = C * K / 255, where C and K are stored inverted, as Adobe does and Pillow assumes
//   alpha         dropped: the colour as the file has it
//   16 bits       x * 255 / 65535, rounded; 1, 2 and 4 bits fill 0 to 255; palettes become their colours
//   gamma, colour profiles: not applied
//
// A defect of the file is an EnvError that names the file: no image, cut off, damaged, larger than kMaxImagePixels. A
// JPEG is cut off if its end marker is missing, and a PNG without its IEND; other data below the region is not read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/train/data/image/image.h"

namespace trainctl {

/// A file may claim any size in its header: refused before memory is allocated.
inline constexpr int64_t kMaxImagePixels = int64_t{1} << 26;

struct DecodeRequest {
  int channels = 3;                ///< 1 or 3
  std::optional<PixelBox> region;  ///< inside the upright image; else all of it
  /// 1, 2, 4 or 8: a JPEG at 1/scale of its size, from fewer coefficients. The region is still in pixels of the whole
  /// image; the result covers [top / scale, ceil((top + height) / scale)) and the same across. A PNG ignores it.
  int scale = 1;
};

class ImageFile;  ///< formats.h

/// An image whose headers have been read, and whose pixels have not. Refers to the bytes and the name, that of errors,
/// with which it was opened. One thread.
class EncodedImage {
 public:
  EncodedImage(std::span<const std::byte> file, const std::string& name);
  ~EncodedImage();
  EncodedImage(const EncodedImage&) = delete;

  const ImageSize& size() const { return size_; }  ///< upright
  /// Once. Equal to the same region of the whole image, bit for bit, at scale 1. Returns the scale of the result: 1, or
  /// the request's.
  int decode(const DecodeRequest& request, Image& out);

 private:
  std::unique_ptr<ImageFile> file_;
  ImageSize size_;
};

/// The upright size, from the headers alone.
ImageSize image_size(std::span<const std::byte> file, const std::string& name);
/// Opens and decodes.
int decode_image(std::span<const std::byte> file, const std::string& name, const DecodeRequest& request, Image& out);

}  // namespace trainctl
