// Plain aligned tables for the terminal.
#include "cli/text/table.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "cli/text/display_width.h"
#include "cli/text/wrap.h"
#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr size_t kGap = 2;           ///< columns between two cells
constexpr size_t kLeastColumn = 10;  ///< columns to which a text column may be narrowed
constexpr size_t kLeastLast = 36;    ///< room below which a last column of text is moved below its row

}  // namespace

Table::Table(std::vector<std::string> headers) : headers_(std::move(headers)) {
  for (std::string& header : headers_) {
    right_.push_back(header.starts_with('>'));
    if (right_.back()) header.erase(0, 1);
  }
}

void Table::add(std::vector<std::string> cells) {
  check(cells.size() == headers_.size(), "a table row has a cell for each header");
  rows_.push_back(std::move(cells));
}

void Table::add_short(std::vector<std::string> cells) {
  check(!cells.empty() && cells.size() < headers_.size(), "a short table row has a cell for the first headers");
  rows_.push_back(std::move(cells));
}

void Table::add_line(std::string text) { add_short({"", std::move(text)}); }

std::vector<size_t> Table::natural_widths() const {
  std::vector<size_t> widths;
  for (const std::string& header : headers_) widths.push_back(display_width(header));
  for (const auto& row : rows_)
    for (size_t c = 0; c < row.size() && (row.size() == headers_.size() || c + 1 < row.size()); ++c)
      widths[c] = std::max(widths[c], display_width(row[c]));
  return widths;
}

/// Narrows the widest left-aligned columns until all fit; if they do not, divides the columns into groups.
std::vector<std::vector<size_t>> Table::groups_that_fit(std::vector<size_t>& widths, size_t width) const {
  const auto least = [&](size_t c) {
    return right_[c] ? widths[c] : std::max(kLeastColumn, display_width(headers_[c]));
  };
  const auto all = [&] { return std::accumulate(widths.begin(), widths.end(), kGap * (widths.size() - 1)); };
  while (all() > width) {
    std::optional<size_t> widest;
    for (size_t c = 0; c < widths.size(); ++c)
      if (widths[c] > least(c) && (!widest || widths[c] > widths[*widest])) widest = c;
    if (!widest) break;
    --widths[*widest];
  }
  std::vector<std::vector<size_t>> groups = {{0}};
  size_t used = widths[0];
  for (size_t c = 1; c < widths.size(); ++c) {
    if (used + kGap + widths[c] > width && groups.back().size() > 1) {
      groups.push_back({0});
      used = widths[0];
    }
    groups.back().push_back(c);
    used += kGap + widths[c];
  }
  return groups;
}

/// True if the last column is text and the others leave it little room: its cells are then below the rows.
bool Table::has_last_below(const std::vector<size_t>& widths, size_t width) const {
  if (right_.back() || widths.size() < 3) return false;
  const size_t others = std::accumulate(widths.begin(), widths.end() - 1, kGap * (widths.size() - 1));
  return others + widths.back() > width && others + kLeastLast > width;
}

/// The header and the rows, with the chosen columns and their widths in characters; wide cells are wrapped.
std::string Table::columns(const std::vector<size_t>& shown, const std::vector<size_t>& widths, size_t indent,
                           size_t width) const {
  std::string text;
  const auto add = [&](const std::vector<std::string>& cells) {
    std::vector<std::vector<std::string>> wrapped;  // by shown column: the lines of its cell
    size_t lines = 1, at = 0;
    for (const size_t c : shown) {
      if (c >= cells.size()) break;
      const bool spans = cells.size() < headers_.size() && c + 1 == cells.size();
      const size_t room = spans ? std::max(width - std::min(width, at), kLeastColumn) : widths[c];
      wrapped.push_back(display_width(cells[c]) <= room ? std::vector{cells[c]} : wrap(cells[c], room));
      lines = std::max(lines, wrapped.back().size());
      at += widths[c] + kGap;
    }
    for (size_t l = 0; l < lines; ++l) {
      std::string line(indent, ' ');
      for (size_t i = 0; i < wrapped.size(); ++i) {
        const std::string cell = l < wrapped[i].size() ? wrapped[i][l] : "";
        const size_t wide = widths[shown[i]], has = display_width(cell);
        const std::string blanks(has < wide ? wide - has : 0, ' ');
        line += (right_[shown[i]] ? blanks + cell : cell + blanks) + std::string(kGap, ' ');
      }
      text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    if (widths.size() == headers_.size() || shown[1] != 1 || cells.size() < headers_.size() || &cells == &headers_ ||
        cells.back().empty())
      return;
    const size_t start = widths[0] + 2 * kGap;  // the last column is below the row
    for (const std::string& below : wrap(cells.back(), width - std::min(width, start)))
      text += std::string(indent + start, ' ') + below + "\n";
  };
  add(headers_);
  for (const auto& row : rows_) add(row);
  return text;
}

std::string Table::str(int indent, size_t width) const {
  constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();
  const auto blanks = static_cast<size_t>(indent);
  const size_t room = width == 0 ? kUnlimited : width - std::min(width, blanks);
  std::vector<size_t> widths = natural_widths();
  if (has_last_below(widths, room)) widths.pop_back();
  std::string text;
  for (const auto& shown : groups_that_fit(widths, room)) text += columns(shown, widths, blanks, room);
  return text;
}

}  // namespace trainctl
