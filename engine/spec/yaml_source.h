// The text of a YAML file as written: positions in it, and facts about quotes that the events of the parser omit.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/source_pos.h"

namespace trainctl {

/// A text in quotes: `open` and `close` are the offsets of its quotes.
struct QuotedText {
  size_t open = 0;
  std::optional<size_t> close;  ///< empty: never closed
};

class YamlSource {
 public:
  /// `text` must outlive the object.
  YamlSource(std::string_view text, std::string file);

  /// Throws SpecError at the first byte that a job file cannot hold: one that is not UTF-8, a control character other
  /// than tab and newline, a carriage return that ends no line.
  void demand_text() const;

  // Lines and columns are those of yaml-cpp: from 0, columns in bytes. Positions are those of users: from 1, in
  // characters.
  SourcePos at(size_t line, size_t column) const;
  SourcePos at_offset(size_t offset) const;
  size_t offset_of(size_t line, size_t column) const;
  size_t line_of(size_t offset) const;
  std::string_view line(size_t number) const;  ///< without its newline; "" if there is no such line
  /// Returns the number of spaces at the beginning of a line; nullopt if the line is blank.
  std::optional<size_t> indent_of(size_t line) const;
  std::string_view from(size_t offset) const { return text_.substr(std::min(offset, text_.size())); }

  /// The quoted text that begins at `offset`, where an anchor or a tag may precede it.
  std::optional<QuotedText> quoted_at(size_t offset) const;
  /// The first quoted text that begins at `offset` or later, as far as can be determined without parsing.
  std::optional<QuotedText> next_quoted(size_t offset) const;

  /// The innermost bracket of a list or mapping that is open at `end`, as far as can be determined without parsing.
  std::optional<size_t> unclosed_bracket(size_t end) const;

 private:
  std::string_view text_;
  std::string file_;
  std::vector<size_t> starts_;  ///< offsets at which lines start

  struct Counted {
    size_t line = 0, column = 0, characters = 0;
  };
  mutable Counted counted_;  ///< the last position: a line, a column in bytes, and the characters before this column
};

}  // namespace trainctl
