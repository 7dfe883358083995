// The orientation of a photo, from its EXIF data: a TIFF file whose first directory may have the tag 0x0112.
//
//   tiff      := ("II" | "MM") 42:u16 directory:u32 …      II: little-endian, MM: big-endian
//   directory := count:u16 entry{count}
//   entry     := tag:u16 type:u16 count:u32 value:4 bytes
#pragma once

#include <cstdint>
#include <span>

namespace trainctl {

/// Tells how stored pixels become the upright image: with H rows stored, upright (y, x) is stored (y, x), or (x, y) if
/// swapped, counted from the last row or column where those are reversed.
struct Orientation {
  bool swaps = false, reverses_rows = false, reverses_columns = false;
  bool is_upright() const { return !swaps && !reverses_rows && !reverses_columns; }
  friend bool operator==(const Orientation&, const Orientation&) = default;
};

/// Returns the orientation for EXIF's numbers 1 to 8; any other number is upright.
Orientation orientation_of(int number);

/// Returns the orientation that the EXIF data give; upright if they give none or are damaged. Image viewers do not
/// reject a photo for damaged EXIF data either.
Orientation exif_orientation(std::span<const uint8_t> tiff);

}  // namespace trainctl
