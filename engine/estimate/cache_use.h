// What a device's cache still holds of the operands of a program's instructions.
#pragma once

#include <vector>

#include "engine/base/units.h"
#include "engine/compile/program.h"

namespace trainctl {

/// By instruction: the part of its operands' bytes that lies in a cache of that size when it begins, in a step that
/// follows another. Memory is in the cache while less than the cache has been touched since. All 0 without a cache.
std::vector<double> parts_in_cache(const Program& program, Bytes cache);

}  // namespace trainctl
