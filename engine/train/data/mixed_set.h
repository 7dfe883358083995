// The sources of a mixture (dataset.type mix) as one data set: sample numbers of a source follow those of the sources
// before it. SampleOrder determines which samples a step draws.
//
// Sources have the same fields. One exception: where some sources pack documents into rows, the rows of a source
// without the field `documents` are one document each, so their `documents` is 0.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/train/data/dataset.h"

namespace trainctl {

/// The seed of a source: its samples and their order do not depend on the other sources.
uint64_t source_seed(uint64_t seed, const std::string& name);

/// Turns an error of a source's data set into an error of the mixture: for the source `code`, the path dataset.path
/// becomes dataset.sources.code.path.
SpecError of_source(const SpecError& error, const std::string& name);

/// SpecError (dataset.sources.NAME, …) if a source cannot be opened or its fields differ from those of the first one.
std::unique_ptr<Dataset> open_mixed_set(const DatasetSpec& spec, uint64_t seed);

/// The header of the set that open_mixed_set() opens. Throws the same errors as open_mixed_set().
DataHeader mixed_header(const DatasetSpec& spec, uint64_t seed);

}  // namespace trainctl
