// The orientation of a photo, from its EXIF data: a TIFF file whose first directory may have the tag 0x0112.
#include "engine/train/data/image/exif.h"

namespace trainctl {
namespace {

/// Reads numbers of a TIFF file; positions beyond its end read as 0.
struct TiffReader {
  std::span<const uint8_t> bytes;
  bool is_big_endian;

  uint32_t byte(size_t at) const { return at < bytes.size() ? bytes[at] : 0; }
  uint32_t u16(size_t at) const { return is_big_endian ? byte(at) << 8 | byte(at + 1) : byte(at + 1) << 8 | byte(at); }
  uint32_t u32(size_t at) const { return is_big_endian ? u16(at) << 16 | u16(at + 2) : u16(at + 2) << 16 | u16(at); }
};

}  // namespace

Orientation orientation_of(int number) {
  if (number < 1 || number > 8) return {};
  return {number >= 5, number == 3 || number == 4 || number == 6 || number == 7,
          number == 2 || number == 3 || number == 7 || number == 8};
}

Orientation exif_orientation(std::span<const uint8_t> tiff) {
  constexpr uint32_t kOrientation = 0x0112, kShort = 3;
  constexpr size_t kEntryBytes = 12;
  if (tiff.size() < 8 || tiff[0] != tiff[1] || (tiff[0] != 'I' && tiff[0] != 'M')) return {};
  const TiffReader reader{tiff, tiff[0] == 'M'};
  if (reader.u16(2) != 42) return {};
  const size_t directory = reader.u32(4);
  const size_t entries = reader.u16(directory);
  if (directory + 2 + entries * kEntryBytes > tiff.size()) return {};
  for (size_t i = 0; i < entries; ++i) {
    const size_t at = directory + 2 + i * kEntryBytes;
    if (reader.u16(at) == kOrientation && reader.u16(at + 2) == kShort && reader.u32(at + 4) == 1)
      return orientation_of(static_cast<int>(reader.u16(at + 8)));
  }
  return {};
}

}  // namespace trainctl
