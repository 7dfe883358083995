#include "cli/text/table.h"

#include <algorithm>

#include "cli/text/display_width.h"
#include "engine/base/error.h"

namespace trainctl {

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

std::string Table::str(int indent) const {
  std::vector<size_t> widths;
  for (const std::string& header : headers_) widths.push_back(header.size());
  for (const auto& row : rows_)
    for (size_t c = 0; c < row.size() && (row.size() == headers_.size() || c + 1 < row.size()); ++c)
      widths[c] = std::max(widths[c], display_width(row[c]));

  std::string text;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out(static_cast<size_t>(indent), ' ');
    for (size_t c = 0; c < cells.size(); ++c) {
      if (c + 1 == cells.size() && cells.size() < headers_.size()) {
        out += cells[c];
        break;
      }
      const std::string gap(widths[c] - display_width(cells[c]), ' ');
      out += right_[c] ? gap + cells[c] : cells[c] + gap;
      out += "  ";
    }
    text += out.substr(0, out.find_last_not_of(' ') + 1) + "\n";
  };
  line(headers_);
  for (const auto& row : rows_) line(row);
  return text;
}

}  // namespace trainctl
