// Mixes several data sets into one. A fixed pattern of 10,000 places assigns each place to a set in proportion to the
// weights, spread as evenly as possible.
//
//   weights 0.5 0.25 0.25     places  a b a c  a b a c …
//
// A set's samples are drawn in order, and from the start again after the last one. The length of the mix is the
// smallest in which every sample of every set is drawn at least once.
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

/// Throws SpecError (dataset.weights) if a weight is not positive or too small, or if the sets' fields or classes
/// differ.
std::unique_ptr<Source> open_mix(std::vector<MixedSet> sets);

}  // namespace trainctl
