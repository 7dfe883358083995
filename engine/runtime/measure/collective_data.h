// Inputs and expected results of a benchmarked collective: rank r's element i is (i mod 7) + r.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/graph/collective.h"

namespace trainctl {

/// Floats in a rank's input and output, and the count to pass to a Communicator.
struct CollectiveSizes {
  int64_t in = 0, out = 0, count = 0;
};
CollectiveSizes collective_sizes(Collective kind, int64_t bytes, int num_ranks);

std::vector<float> collective_input(int64_t count, int rank);
/// Number of elements of `out` that differ from the expected result.
int64_t count_wrong(Collective kind, const std::vector<float>& out, int rank, int num_ranks);

}  // namespace trainctl
