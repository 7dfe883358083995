// Elements of the types of safetensors as numbers.
#pragma once

#include <cstdint>

#include "engine/train/files/safetensors.h"

namespace trainctl {

/// Returns whether value_of supports the type. It supports all types but the 4-bit and 6-bit ones, F8_E8M0, the FNUZ
/// types and C64.
bool has_values(StoredType type);
/// Returns the element at `at`, which may have any alignment.
double value_of(StoredType type, const uint8_t* at);

}  // namespace trainctl
