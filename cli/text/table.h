// Plain aligned tables for the terminal.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace trainctl {

class Table {
 public:
  /// A header starting with '>' makes a right-aligned column.
  explicit Table(std::vector<std::string> headers);
  void add(std::vector<std::string> cells);
  /// Adds a row whose last cell spans all remaining columns without widening them.
  void add_short(std::vector<std::string> cells);
  /// Adds a separate line between rows, starting at the second column.
  void add_line(std::string text);
  bool empty() const { return rows_.empty(); }
  /// Every line is indented by `indent` spaces, without trailing blanks: the last column is never padded. Lines fit
  /// into `width` columns if it is not 0: cells of left-aligned columns are wrapped, those of a last column without room
  /// are below their rows, and columns that still do not fit follow below the others, each time with the first column.
  std::string str(int indent = 2, size_t width = 0) const;

 private:
  std::vector<size_t> natural_widths() const;
  bool has_last_below(const std::vector<size_t>& widths, size_t width) const;
  std::vector<std::vector<size_t>> groups_that_fit(std::vector<size_t>& widths, size_t width) const;
  std::string columns(const std::vector<size_t>& shown, const std::vector<size_t>& widths, size_t indent,
                      size_t width) const;

  std::vector<std::string> headers_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace trainctl
