// The types in which a job computes.
#pragma once

#include <cstdint>
#include <string_view>

namespace trainctl {

enum class Precision : uint8_t { fp32, tf32, bf16, fp16 };
std::string_view to_string(Precision precision);

}  // namespace trainctl
