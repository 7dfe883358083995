// Several sets as one: a fixed pattern of 10,000 places deals them out by weight, as evenly as integers allow.
//
//   weights 0.5 0.25 0.25     places  a b a c  a b a c …
//
// A set's samples come in their order, and again from the first when all have come. The mix is just so long that each
// sample of each set comes at least once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/train/data/source.h"

namespace trainctl {

struct MixedSet {
  std::shared_ptr<const Source> set;
  double weight = 1;  ///< relative to the others
};

/// SpecError (dataset.weights) if a weight is not positive or too small, or if the sets' fields or classes differ.
std::unique_ptr<Source> open_mix(std::vector<MixedSet> sets);

}  // namespace trainctl
