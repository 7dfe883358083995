// A chain of transforms that is random, cut in two, so that a cache can keep what comes before chance:
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
  FieldWays before;                                    ///< draws nothing; each field has one shape
  std::vector<std::optional<SampleTransforms>> after;  ///< by field; null: none
};

/// Null where nothing would be worth keeping: some field of the samples has no fixed shape before its first transform
/// that draws, as photos that are first cut at random.
/// `bytes`: of `after`; what is kept are floats where transforms that are not random made some.
std::optional<CutTransforms> cut_at_first_random(const std::vector<SourceField>& from, const DatasetSpec& spec,
                                                 FieldWays::Bytes bytes = FieldWays::Bytes::become_floats);

/// The samples of `inner`, which are those of CutTransforms::before, and then `after`. `fields`: of the result,
/// whose types are those of `after`.
std::unique_ptr<Dataset> continue_samples(std::unique_ptr<Dataset> inner, std::vector<SampleField> fields,
                                          std::vector<std::optional<SampleTransforms>> after);

}  // namespace trainctl
