// Element types.
#pragma once

#include <cstdint>
#include <string_view>

namespace trainctl {

enum class DType : uint8_t { f32, bf16, i32 };

constexpr int64_t byte_size(DType t) { return t == DType::bf16 ? 2 : 4; }
constexpr std::string_view to_string(DType t) { return t == DType::f32 ? "f32" : t == DType::bf16 ? "bf16" : "i32"; }

}  // namespace trainctl
