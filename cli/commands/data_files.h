// Files of tables as arguments of `trainctl data`: info, check, show and convert.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainctl {

/// Returns whether `trainctl data` reads the path as a table, not as tokens or a job: by its name, or a folder of
/// tables (open_tables() in convert_table.h).
bool is_table_path(const std::string& path);

/// "a.parquet: 1,000 rows" and a line per column. SpecError or EnvError if the file cannot be read.
std::string describe_table(const std::string& path);

/// Reads every row of the files and prints what is in them and which rows cannot be read. Returns whether all can.
bool check_table(const std::string& path);

/// Prints the first rows.
void show_table(const std::string& path, int64_t count);

}  // namespace trainctl
