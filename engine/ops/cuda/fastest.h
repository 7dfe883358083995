// Which of several ways to compute the same thing is the fastest, by measurement.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

namespace trainctl::cuda {

/// Returns the fastest candidate; they are in the order in which a library suggests them. `measure` returns
/// milliseconds; negative: the candidate could not run.
size_t fastest(size_t candidates, const std::function<float(size_t)>& measure);

/// The same among the candidates whose results have the same bits as those of the first one that runs, so that no
/// measurement changes a result. `bits` returns a digest of a candidate's results; nothing: it could not run.
size_t fastest_with_same_bits(size_t candidates, const std::function<std::optional<uint64_t>(size_t)>& bits,
                              const std::function<float(size_t)>& measure);

}  // namespace trainctl::cuda
