// Writes image files for tests with libjpeg and libpng. Their picture is smooth in some places and sharp in others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/train/data/image/image.h"

namespace trainctl {

using FileBytes = std::vector<std::byte>;

struct Picture {
  int64_t height, width, channels;
  std::vector<uint8_t> pixels;
  uint8_t at(int64_t y, int64_t x, int64_t c) const {
    return pixels[static_cast<size_t>((y * width + x) * channels + c)];
  }
};

/// Makes a picture of waves and edges; each seed gives another picture.
Picture make_picture(int64_t height, int64_t width, int64_t channels, uint64_t seed = 1);

struct JpegOptions {
  int quality = 85;
  int horizontal = 2, vertical = 2;  ///< chroma subsampling: pixels per color sample
  bool is_progressive = false;
  int restart_rows = 0;
  int orientation = 0;  ///< EXIF orientation; 0: no EXIF
  bool is_big_endian = false;
  bool is_ycck = false;  ///< YCCK if there are 4 channels
};
/// Writes a JPEG file. A picture of 1 channel is stored as gray, 3 channels are RGB and stored as YCbCr, 4 channels are
/// inverted CMYK.
FileBytes write_jpeg(const Picture& picture, const JpegOptions& options = {});

struct PngOptions {
  int bits = 8;  ///< 16: two bytes per channel, big-endian, in `pixels`; 1, 2, 4: packed rows in `pixels`
  bool is_interlaced = false;
  std::vector<uint8_t> palette;  ///< red, green, blue of each entry; the pixels, of 1 channel, are indices of entries
  int orientation = 0;
};
/// Writes a PNG file. 1 channel is gray, 2 channels are gray and alpha, 3 are RGB, 4 are RGB and alpha.
FileBytes write_png(const Picture& picture, const PngOptions& options = {});

/// TIFF data, as EXIF has them, with the tag of an orientation.
std::vector<uint8_t> exif_data(int orientation, bool is_big_endian);

}  // namespace trainctl
