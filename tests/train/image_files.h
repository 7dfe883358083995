// Image files for tests, written by libjpeg and libpng, of a picture that is smooth in places and sharp in others.
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

/// Waves and edges, others for each seed.
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
/// 1 channel: gray. 3: RGB, stored as YCbCr. 4: inverted CMYK.
FileBytes write_jpeg(const Picture& picture, const JpegOptions& options = {});

struct PngOptions {
  int bits = 8;  ///< 16: two bytes per channel, big-endian, in `pixels`; 1, 2, 4: packed rows in `pixels`
  bool is_interlaced = false;
  std::vector<uint8_t> palette;  ///< red, green, blue of each entry; the pixels, of 1 channel, are indices of entries
  int orientation = 0;
};
/// 1 channel: gray. 2: gray and alpha. 3: RGB. 4: RGB and alpha.
FileBytes write_png(const Picture& picture, const PngOptions& options = {});

/// TIFF data with the tag of an orientation.
std::vector<uint8_t> exif_data(int orientation, bool is_big_endian);

}  // namespace trainctl
