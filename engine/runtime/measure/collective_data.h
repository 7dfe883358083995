// What goes into a collective of a bench and what must come out: rank r's element i is (i mod 7) + r.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/graph/collective.h"

namespace trainctl {

/// Floats of a rank's input and output, and the count with which a Communicator is called.
struct CollectiveSizes {
  int64_t in = 0, out = 0, count = 0;
};
CollectiveSizes collective_sizes(Collective kind, int64_t bytes, int num_ranks);

std::vector<float> collective_input(int64_t count, int rank);
/// Elements of `out` that are not what the inputs of all ranks make.
int64_t count_wrong(Collective kind, const std::vector<float>& out, int rank, int num_ranks);

}  // namespace trainctl
