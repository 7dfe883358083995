// Rows of a table, and the values of a row: the grammar is in csv.h. Takes text, so that it can be fuzzed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

/// Returns the size of the first row of `text`, with its line end. A row without one ends with the text if that is the
/// file's end. Returns nothing if the row continues after the text, or if a quote is still open at the end of the file.
std::optional<size_t> row_bytes(std::string_view text, char delimiter, bool is_file_end);

/// The values of one row; its line end does not count. They refer to `row`, from which quotes are removed. Returns what
/// is wrong with the row, or an empty text.
std::string split_row(std::string& row, char delimiter, std::vector<std::string_view>& values);

/// Sorts the words by value if all are numbers; otherwise leaves their order unchanged.
void sort_as_numbers(std::vector<std::string>& words);

/// Returns whether the row has only blanks and a line end.
bool is_blank_row(std::string_view row);

}  // namespace trainctl
