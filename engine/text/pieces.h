// A text, and the pieces that a pre-tokenizer cuts it into.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

struct TextPiece {
  size_t begin = 0, end = 0;
  bool is_first = false;  ///< it begins with a part of the first character of the whole text
};

/// `text` is a view of the caller's memory until a pre-tokenizer changes it; then it is a view of `buffer`.
struct Pieces {
  std::string_view text;
  std::string buffer;
  std::vector<TextPiece> pieces;
  size_t start_bytes = 1;  ///< bytes at the front that come from the first character of the whole text

  std::string_view of(const TextPiece& piece) const { return text.substr(piece.begin, piece.end - piece.begin); }
};

}  // namespace trainctl
