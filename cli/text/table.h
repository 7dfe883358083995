// Plain aligned tables for the terminal.
#pragma once

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
  /// Every line is indented by `indent` spaces, without trailing blanks: the last column is never padded.
  std::string str(int indent = 2) const;

 private:
  std::vector<std::string> headers_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace trainctl
