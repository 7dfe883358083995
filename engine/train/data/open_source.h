// Opens the Source that dataset.type and its fields describe.
#pragma once

#include <memory>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/data/source.h"

namespace trainctl {

/// Opens mnist and all types with DatasetSpec::has_source(), with dataset.split and dataset.weights applied. Throws
/// SpecError (a field of the data set) if the files do not exist or do not fit the type, and EnvError if one is
/// damaged.
std::shared_ptr<const Source> open_source(const DatasetSpec& spec, uint64_t seed);

/// True if a table (csv, table) has words in a column other than the label. These words have the numbers that they have
/// in the training set.
bool reads_words(const DatasetSpec& spec);

/// Reads the data whose checksums are not verified when a source is opened: the arrays of npz files. Throws EnvError if
/// one is damaged.
void check_source_files(const DatasetSpec& spec);

/// Fields of a set of IDX files with images of that shape.
std::vector<SourceField> mnist_fields(const Shape& image);

}  // namespace trainctl
