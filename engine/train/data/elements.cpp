// Converts elements of samples from the type that the set has to the type in which a device loads them.
#include "engine/train/data/elements.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "engine/base/error.h"
#include "engine/graph/bf16.h"
#include "engine/graph/f16.h"

namespace trainctl {
namespace {

template <class From>
float to_float(From value) {
  return static_cast<float>(value);
}

template <class From>
int32_t to_int(From value) {
  if constexpr (sizeof(From) > sizeof(int32_t)) {
    if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max())
      throw EnvError(fmt::format("the integer {} is too large for 32 bits", value));
  }
  return static_cast<int32_t>(value);
}

template <class From>
void convert_elements(const From* from, int64_t count, DType to_type, void* to) {
  switch (to_type) {
    case DType::f32:
      for (int64_t i = 0; i < count; ++i) static_cast<float*>(to)[i] = to_float(from[i]);
      return;
    case DType::bf16:
      for (int64_t i = 0; i < count; ++i) static_cast<uint16_t*>(to)[i] = to_bf16(to_float(from[i]));
      return;
    case DType::f16:
      for (int64_t i = 0; i < count; ++i) static_cast<uint16_t*>(to)[i] = to_f16(to_float(from[i]));
      return;
    case DType::i32:
      for (int64_t i = 0; i < count; ++i) static_cast<int32_t*>(to)[i] = to_int(from[i]);
      return;
  }
}

void convert_bf16(const uint16_t* from, int64_t count, DType to_type, void* to) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = from_bf16(from[i]);
    convert_elements(&value, 1, to_type, static_cast<std::byte*>(to) + i * byte_size(to_type));
  }
}

}  // namespace

void convert_elements(const void* from, ElementType from_type, int64_t count, DType to_type, void* to) {
  if (is_same(from_type, to_type)) {
    std::memcpy(to, from, static_cast<size_t>(count * byte_size(from_type)));
    return;
  }
  switch (from_type) {
    case ElementType::u8:
      return convert_elements(static_cast<const uint8_t*>(from), count, to_type, to);
    case ElementType::u16:
      return convert_elements(static_cast<const uint16_t*>(from), count, to_type, to);
    case ElementType::i32:
      return convert_elements(static_cast<const int32_t*>(from), count, to_type, to);
    case ElementType::i64:
      return convert_elements(static_cast<const int64_t*>(from), count, to_type, to);
    case ElementType::f32:
      return convert_elements(static_cast<const float*>(from), count, to_type, to);
    case ElementType::bf16:
      return convert_bf16(static_cast<const uint16_t*>(from), count, to_type, to);
  }
}

}  // namespace trainctl
