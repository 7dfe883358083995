// The files of a set, and errors for files that no source reads.
#pragma once

#include <string>
#include <vector>

namespace trainctl {

/// The files that the patterns name: in the order of the patterns, sorted within each; a file that two of them match
/// comes once. `field` is the job's: SpecError if a pattern matches none, or a file is of a format that
/// refuse_foreign_format names.
std::vector<std::string> list_files(const std::vector<std::string>& patterns, const std::string& field);

/// The same for sets that also read tables (table_file.h), which may be folders.
std::vector<std::string> list_table_files(const std::vector<std::string>& patterns, const std::string& field);

/// SpecError that says what to do instead, for Parquet, Arrow, HDF5, TFRecord and pickles, by the file's name.
void refuse_foreign_format(const std::string& path, const std::string& field);

}  // namespace trainctl
