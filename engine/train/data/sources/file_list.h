// The files of a set, and errors for files that no source reads.
#pragma once

#include <string>
#include <vector>

namespace trainctl {

/// The files that match the patterns, in the order of the patterns and sorted within each. A file that matches two
/// patterns is listed once. `field` is the field of the job with the patterns. Throws SpecError if a pattern matches no
/// file, or if a file has a format that refuse_foreign_format() refuses.
std::vector<std::string> list_files(const std::vector<std::string>& patterns, const std::string& field);

/// The same for sets that also read tables (table_file.h), which may be folders.
std::vector<std::string> list_table_files(const std::vector<std::string>& patterns, const std::string& field);

/// Throws SpecError for Parquet, Arrow, HDF5, TFRecord and pickle files, by the file's name. The message says what to
/// do instead.
void refuse_foreign_format(const std::string& path, const std::string& field);

}  // namespace trainctl
