// The arguments of cuTensorMapEncodeTiled in the 128 bytes of a CUtensorMap, in the emulator's own layout.
#pragma once

#include <cstdint>

namespace trainctl::emulator {

struct TensorMap {
  static constexpr uint64_t kMark = 0x7452414e534d4150;
  uint64_t mark = 0, address = 0;
  uint64_t sizes[2] = {};
  uint64_t line_bytes = 0;
  uint32_t box[2] = {};
  uint32_t element_bytes = 0;
  uint32_t swizzle_bytes = 0;  ///< 0 or 128
};
static_assert(sizeof(TensorMap) <= 128);

}  // namespace trainctl::emulator
