// The IDX format of MNIST, raw or gzip-compressed (recognized by its first bytes, not by its name).
//
//   file := 0 0 type ndim  dim{ndim}  element*      dims are 32-bit big-endian, elements row-major
//   type := 08 u8 | 09 i8 | 0B i16 | 0C i32 | 0D f32 | 0E f64
//
// The readers take bytes, not files, so that they can be fuzzed. Any defect of a file is an EnvError that
// names the file, the byte, what was expected and what was found.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/shape.h"

namespace trainctl {

struct IdxHeader {
  uint8_t type = 0;
  Shape dims;
  int64_t header_bytes() const { return 4 + 4 * static_cast<int64_t>(dims.size()); }
  int64_t element_bytes() const;
  int64_t body_bytes() const { return num_elements(dims) * element_bytes(); }
};

struct IdxArray {
  IdxHeader header;
  std::vector<uint8_t> body;  ///< bytes of the file after the header
};

inline constexpr uint8_t kIdxU8 = 0x08;
inline constexpr int64_t kMaxIdxBytes = int64_t{16} << 30;

/// `start` is the beginning of the file; 64 KiB suffice. Does not check the body.
IdxHeader parse_idx_header(std::span<const uint8_t> start, const std::string& file);

/// Throws EnvError if a compressed file of `packed_bytes` claims more than it may inflate to (inflation.h).
void check_inflation(const IdxHeader& header, int64_t packed_bytes, const std::string& file);

/// Parses the whole file. Never allocates more memory than the given bytes can hold, or may inflate to.
IdxArray parse_idx(std::span<const uint8_t> bytes, const std::string& file, int64_t max_bytes = kMaxIdxBytes);

/// "u8 [1437, 8, 8]".
std::string to_string(const IdxHeader& header);

}  // namespace trainctl
