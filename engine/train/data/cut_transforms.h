// A chain of transforms that is random, cut in two, so that a cache can keep the results of the first part:
//
//   source -> decode -> transforms that draw nothing -> cache -> the others, from the first one that draws
//
// The samples have the same bits as without the cut.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/train/data/source_set.h"

namespace trainctl {

struct CutTransforms {
  FieldWays before;                                    ///< The transforms before the cut, none of which is random; each
                                                       ///< field has one shape.
  std::vector<std::optional<SampleTransforms>> after;  ///< by field; null: none
};

/// Null if caching would be useless, because some field of the samples has no fixed shape before its first random
/// transform, such as photos that are first cropped at random. `bytes` applies to `after`. A cached field has floats if
/// its transforms before the cut produce floats.
std::optional<CutTransforms> cut_at_first_random(const std::vector<SourceField>& from, const DatasetSpec& spec,
                                                 FieldWays::Bytes bytes = FieldWays::Bytes::become_floats);

/// Applies `after` to the samples of `inner`, which are the samples of CutTransforms::before. `fields` are the fields
/// of the result.
std::unique_ptr<Dataset> continue_samples(std::unique_ptr<Dataset> inner, std::vector<SampleField> fields,
                                          std::vector<std::optional<SampleTransforms>> after);

}  // namespace trainctl
