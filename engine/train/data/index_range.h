// Finds integers in a data set that are out of range where the network uses them as an index: classes, tokens, ids.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/base/error.h"
#include "engine/model/index_uses.h"
#include "engine/train/data/checked_sets.h"

namespace trainctl {

/// Most samples in files that are read before a run.
inline constexpr int64_t kMostSamplesRead = 10'000;
/// The same limit for an object store, where reading a label also transfers the data next to it.
inline constexpr int64_t kMostStoreSamplesRead = 256;

/// Returns the field of the job that causes such an integer, and what is wrong with it; nothing if all integers are in
/// range. Samples are read only if the field of the job does not show the range: the first kMostSamplesRead samples,
/// and tokens for about a second. Throws the same errors as open_dataset.
std::optional<Diagnostic> index_out_of_range(const CheckedSet& set, const IndexUse& use);

}  // namespace trainctl
