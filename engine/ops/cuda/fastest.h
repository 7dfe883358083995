// Finds by measurement the fastest of several ways to compute the same thing.
#pragma once

#include <cstddef>
#include <functional>

namespace trainctl::cuda {

/// Returns the fastest candidate; they are in the order in which a library suggests them. `measure` returns
/// milliseconds; negative: the candidate could not run.
size_t fastest(size_t candidates, const std::function<float(size_t)>& measure);

}  // namespace trainctl::cuda
