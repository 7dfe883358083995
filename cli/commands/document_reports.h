// The reports of `trainctl data check` and `data show --tokens` on rows of documents.
#pragma once

#include <cstdint>
#include <string>

#include "engine/spec/job_spec.h"

namespace trainctl {

/// Prints the contents of all rows: documents, trained positions, and rows that train nothing. Throws EnvError if a
/// document cannot be read.
void report_documents(const DatasetSpec& spec, const std::string& title);
/// Prints how many texts of each class there are, and how many are truncated. EnvError as above.
void report_class_texts(const DatasetSpec& spec, const std::string& title);

/// Prints the texts of the first rows of a run, with trained tokens marked: in color on a terminal, or between « and ».
void show_tokens(const DatasetSpec& spec, uint64_t seed, int64_t rows);

}  // namespace trainctl
