// CRC-32C (Castagnoli), as TFRecord files have it.
#include "engine/train/data/tables/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace trainctl {
namespace {

constexpr std::array<uint32_t, 256> kCrcOfByte = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    table[byte] = crc;
  }
  return table;
}();

uint32_t crc_by_table(std::span<const uint8_t> bytes) {
  uint32_t crc = 0xffffffffu;
  for (const uint8_t byte : bytes) crc = crc >> 8 ^ kCrcOfByte[(crc ^ byte) & 0xff];
  return ~crc;
}

#if defined(__x86_64__)
/// The processor's own instruction, eight bytes at a time.
__attribute__((target("sse4.2"))) uint32_t crc_by_instruction(std::span<const uint8_t> bytes) {
  uint64_t crc = 0xffffffffu;
  while (bytes.size() >= sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    crc = _mm_crc32_u64(crc, word);
    bytes = bytes.subspan(sizeof word);
  }
  auto rest = static_cast<uint32_t>(crc);
  for (const uint8_t byte : bytes) rest = _mm_crc32_u8(rest, byte);
  return ~rest;
}
#endif

}  // namespace

uint32_t crc32c(std::span<const uint8_t> bytes) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return crc_by_instruction(bytes);
#endif
  return crc_by_table(bytes);
}

}  // namespace trainctl
