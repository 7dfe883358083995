// Elements of the types of safetensors as numbers.
#pragma once

#include <cstdint>

#include "engine/train/files/safetensors.h"

namespace trainctl {

/// Returns whether value_of knows the type: all but those of 4 and 6 bits, F8_E8M0, the FNUZ ones and C64.
bool has_values(StoredType type);
/// Returns the element at `at`, which may have any alignment.
double value_of(StoredType type, const uint8_t* at);

}  // namespace trainctl
