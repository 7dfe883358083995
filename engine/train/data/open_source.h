// dataset.type and its fields to a Source.
#pragma once

#include <memory>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/data/source.h"

namespace trainctl {

/// Opens mnist, and all types with DatasetSpec::has_source(): with its shares and weights. Throws SpecError (a field of
/// the data set) if the files are not there or not as the type says, EnvError if one is damaged.
std::shared_ptr<const Source> open_source(const DatasetSpec& spec, uint64_t seed);

/// True if a table (csv, table) has words in a column other than the label. Their numbers are those of the training
/// set.
bool reads_words(const DatasetSpec& spec);

/// Reads what has a checksum that opening does not look at: the arrays of npz files. Throws EnvError if one is damaged.
void check_source_files(const DatasetSpec& spec);

/// Fields of a set of IDX files with images of that shape.
std::vector<SourceField> mnist_fields(const Shape& image);

}  // namespace trainctl
