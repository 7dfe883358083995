// The header of a file of one NumPy array (numpy/lib/format.py, formats 1.0, 2.0 and 3.0).
//
//   file   = "\x93NUMPY" major minor length header data
//   length = u16, or from 2.0 on u32, little-endian: of the header
//   header = {'descr': '<f4', 'fortran_order': False, 'shape': (64, 10), } blanks newline
//
// Takes bytes, so that it can be fuzzed. Every defect is an EnvError with the file and byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/graph/shape.h"
#include "engine/train/data/sources/stored_element.h"

namespace trainctl {

struct NpyHeader {
  StoredElement stored = StoredElement::f32;
  Shape shape;
  int64_t data_at = 0;
  int64_t data_bytes = 0;
};

/// An upper bound for the size of a header.
inline constexpr int64_t kNpyHeaderBytes = 16 << 10;

/// `start` has the beginning of the array's bytes: kNpyHeaderBytes of them, or all. `bytes` is their total number. If
/// the array is inside another file, `file` names both.
NpyHeader parse_npy_header(std::span<const uint8_t> start, int64_t bytes, const std::string& file);

}  // namespace trainctl
