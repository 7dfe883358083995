// Rows of a table, and the values of a row: the grammar is in csv.h.
#include "engine/train/data/sources/csv_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace trainctl {
namespace {

/// Returns the end of the value that begins at `at`, before its delimiter or line end; npos if it is quoted and its
/// closing quote is not in the text.
size_t value_end(std::string_view text, size_t at, char delimiter) {
  if (at < text.size() && text[at] == '"') {
    for (++at;; at += 2) {
      at = text.find('"', at);
      if (at == std::string_view::npos) return at;
      if (at + 1 >= text.size() || text[at + 1] != '"') break;  // "" is a quote of the value
    }
    ++at;
  }
  const char ends[] = {delimiter, '\n'};
  return std::min(text.find_first_of(std::string_view(ends, 2), at), text.size());
}

}  // namespace

std::optional<size_t> row_bytes(std::string_view text, char delimiter, bool is_file_end) {
  const size_t line_end = text.find('\n');
  const std::string_view line = text.substr(0, line_end);
  if (line.find('"') == std::string_view::npos) {
    if (line_end != std::string_view::npos) return line_end + 1;
    return is_file_end ? std::optional(text.size()) : std::nullopt;
  }
  for (size_t at = 0;; ++at) {
    at = value_end(text, at, delimiter);
    if (at == std::string_view::npos) return {};
    if (at == text.size()) return is_file_end ? std::optional(at) : std::nullopt;
    if (text[at] == '\n') return at + 1;
  }
}

std::string split_row(std::string& row, char delimiter, std::vector<std::string_view>& values) {
  values.clear();
  if (row.ends_with('\n')) row.pop_back();
  if (row.ends_with('\r')) row.pop_back();
  for (size_t at = 0;; ++at) {
    const size_t end = value_end(row, at, delimiter);
    if (end == std::string::npos) return fmt::format("value {} has no closing quote", values.size() + 1);
    std::string_view value = std::string_view(row).substr(at, end - at);
    if (value.starts_with('"')) {
      if (value.size() < 2 || !value.ends_with('"'))
        return fmt::format("value {}: expected the delimiter '{}' after the closing quote", values.size() + 1,
                           delimiter);
      char* to = row.data() + at;  // unquoting in place is safe because it only shortens the value
      for (size_t from = at + 1; from + 1 < end; ++from) {
        if (row[from] == '"') {
          if (from + 2 >= end || row[from + 1] != '"')
            return fmt::format("value {}: expected the delimiter '{}' after the closing quote", values.size() + 1,
                               delimiter);
          ++from;
        }
        *to++ = row[from];
      }
      value = {row.data() + at, static_cast<size_t>(to - row.data()) - at};
    } else if (value.find('"') != std::string_view::npos) {
      return fmt::format("value {}: unexpected quote in a value that does not start with a quote", values.size() + 1);
    }
    values.push_back(value);
    at = end;
    if (at == row.size()) return {};
  }
}

bool is_blank_row(std::string_view row) { return row.find_first_not_of(" \t\r\n") == std::string_view::npos; }

void sort_as_numbers(std::vector<std::string>& words) {
  std::vector<std::pair<double, std::string>> numbers;
  for (const std::string& word : words) {
    char* end = nullptr;
    const double value = std::strtod(word.c_str(), &end);
    while (*end == ' ' || *end == '\t') ++end;
    if (word.empty() || *end != '\0' || std::isnan(value)) return;
    numbers.emplace_back(value, word);
  }
  std::sort(numbers.begin(), numbers.end());
  for (size_t i = 0; i < words.size(); ++i) words[i] = std::move(numbers[i].second);
}

}  // namespace trainctl
