// Stores values as the bytes of a field.
#pragma once

#include <bit>
#include <cstring>
#include <span>

#include "engine/base/error.h"
#include "engine/train/data/source.h"

namespace trainctl {

static_assert(std::endian::native == std::endian::little, "the bytes of a field are little-endian");

template <class T>
void store(std::span<const T> values, FieldBytes& out) {
  out.resize(values.size_bytes());
  if (!out.empty()) std::memcpy(out.data(), values.data(), out.size());
}

/// Stores one integer. `type` is i32 or i64, and the value fits it.
inline void store_integer(int64_t value, ElementType type, FieldBytes& out) {
  check(type == ElementType::i32 || type == ElementType::i64, "an integer is i32 or i64");
  out.resize(static_cast<size_t>(byte_size(type)));
  std::memcpy(out.data(), &value, out.size());  // the low bytes come first
}

inline std::span<uint8_t> writable_bytes(FieldBytes& out) {
  return {reinterpret_cast<uint8_t*>(out.data()), out.size()};
}

}  // namespace trainctl
