// Element types.
#pragma once

#include <cstdint>
#include <string_view>

namespace trainctl {

enum class DType : uint8_t { f32, bf16, i32, f16 };

/// True for the 16-bit types of mixed precision.
constexpr bool is_half(DType t) { return t == DType::bf16 || t == DType::f16; }
constexpr bool is_float(DType t) { return t != DType::i32; }
constexpr int64_t byte_size(DType t) { return is_half(t) ? 2 : 4; }
constexpr std::string_view to_string(DType t) {
  return t == DType::f32 ? "f32" : t == DType::bf16 ? "bf16" : t == DType::f16 ? "f16" : "i32";
}

}  // namespace trainctl
