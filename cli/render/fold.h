// Folds repeated rows of a report: h.0.fc, h.0.act, h.1.fc, h.1.act, … become one block of two rows and its count.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trainctl {

/// Rows may be folded into one if their facts are equal and their names differ only in numbers.
struct FoldRow {
  std::string name;
  std::string facts;
};

/// One line in place of many rows: either the head of a block, or a row that stands for all of `rows`.
struct FoldLine {
  int depth = 0;             ///< how many blocks it is in
  int64_t times = 0;         ///< head: number of consecutive occurrences of the block; 0: the line is a row
  std::string name;          ///< head: "h.0 … h.11"; row: name_pattern of its rows
  std::vector<size_t> rows;  ///< row: the indices of all that it stands for; head: none
};

/// Folds rows into lines. Every row is in exactly one line, and blocks are made only where they save lines.
std::vector<FoldLine> fold_rows(const std::vector<FoldRow>& rows);

/// One pattern that stands for exactly these names, in this order: "h.{0-11}.fc", "h.{0-3}.mlp.{0,1}.fc" (the first
/// braces slowest). Nothing if there is none. Names without braces of their own.
std::optional<std::string> name_pattern(const std::vector<std::string>& names);

/// "0-7", "0-12:4" (every fourth), "0,1,4-7": numbers as ranges with their ends; in this order.
std::string number_ranges(const std::vector<int64_t>& numbers);

/// `period` items from `first` on occur `times` times, with numbers that rise or fall evenly.
struct Repeat {
  size_t first = 0, period = 1, times = 1;
  size_t saved() const { return period * (times - 1); }
};

/// Splits texts into numbers and the rest, to find what repeats except for numbers.
class NumberedTexts {
 public:
  /// `facts` is a part that must be equal, numbers included.
  void add(const std::string& text, const std::string& facts = "");
  size_t size() const { return skeletons_.size(); }
  const std::vector<int64_t>& numbers(size_t i) const { return numbers_[i]; }
  /// The repeat that begins at `first`, ends before `end` and saves most; of equal ones that with the shortest period.
  /// times 1: none.
  Repeat best_repeat(size_t first, size_t end) const;

 private:
  size_t times(size_t first, size_t period, size_t end) const;
  bool in_step(size_t first, size_t period, size_t time) const;

  std::vector<int> skeletons_;  ///< equal for equal facts and equal text between the numbers
  std::vector<std::vector<int64_t>> numbers_;
  std::map<std::string, int> ids_;
};

}  // namespace trainctl
