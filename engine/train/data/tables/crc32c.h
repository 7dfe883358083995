// CRC-32C (Castagnoli), as TFRecord files have it.
#pragma once

#include <cstdint>
#include <span>

namespace trainctl {

uint32_t crc32c(std::span<const uint8_t> bytes);

/// TensorFlow stores checksums in this form, so that a checksum of checksums is useful.
inline uint32_t tf_checksum(std::span<const uint8_t> bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

}  // namespace trainctl
