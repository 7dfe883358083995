// Text that fits into a number of columns.
#include "cli/text/wrap.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/text/display_width.h"

namespace trainctl {
namespace {

constexpr size_t kLeastWidth = 8;     ///< columns that a wrapped line gets in any case
constexpr size_t kLabelColumns = 13;  ///< columns of a row's label, after the indent

/// Bytes of the first `columns` characters.
size_t bytes_of_columns(std::string_view text, size_t columns) {
  size_t at = 0;
  for (; at < text.size() && columns > 0; --columns)
    for (++at; at < text.size() && continues_character(text[at]);) ++at;
  return at;
}

/// Bytes of the text that go into a line of this width: up to a blank, else up to punctuation, else all that fits.
size_t bytes_of_line(std::string_view text, size_t width) {
  const size_t most = bytes_of_columns(text, width);
  if (most == text.size() || text[most] == ' ') return most;
  const std::string_view line = text.substr(0, most);
  const size_t blank = line.rfind(' ');
  if (blank != std::string_view::npos && blank > line.find_first_not_of(' ')) return blank;
  if (const size_t mark = line.find_last_of("/,._-:;"); mark != std::string_view::npos && mark > 0) return mark + 1;
  return most;
}

}  // namespace

std::vector<std::string> wrap(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  do {
    const size_t bytes = bytes_of_line(text, std::max<size_t>(width, 1));
    lines.emplace_back(text.substr(0, bytes));
    text.remove_prefix(std::min(text.find_first_not_of(' ', bytes), text.size()));
  } while (!text.empty());
  return lines;
}

std::string fit_lines(const std::string& text, size_t width) {
  if (width == 0) return text;
  std::string fitted;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (display_width(line) <= width) {
      fitted += line + "\n";
      continue;
    }
    const size_t indent = line.find_first_not_of(' ');
    const size_t left = std::max(kLeastWidth, width - std::min(width, indent + 2));
    std::string first(indent, ' '), rest = line.substr(indent);
    const std::string head = wrap(rest, left + 2).front();
    fitted += first + head + "\n";
    rest.erase(0, std::min(rest.find_first_not_of(' ', head.size()), rest.size()));
    if (rest.empty()) continue;
    for (const std::string& more : wrap(rest, left)) fitted += std::string(indent + 2, ' ') + more + "\n";
  }
  return fitted;
}

std::string labelled(std::string_view label, std::string_view text, size_t width) {
  const size_t left = width == 0 ? text.size() + 1 : std::max(kLeastWidth, width - std::min(width, kLabelColumns + 2));
  std::string row;
  for (const std::string& line : wrap(text, left)) {
    row += fmt::format("  {:<{}}{}\n", row.empty() ? label : "", kLabelColumns, line);
  }
  return row;
}

}  // namespace trainctl
