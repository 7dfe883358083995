// Unicode as tokenizers need it: UTF-8, classes of characters, normal forms and grapheme clusters. utf8proc has the
// data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

/// The character at `at`, and its bytes. Bytes that are not UTF-8 count as one character, U+FFFD, each.
struct CodePoint {
  char32_t value = 0;
  uint32_t bytes = 1;
};
CodePoint code_point(std::string_view text, size_t at);
void append_utf8(std::string& to, char32_t value);
std::u32string to_utf32(std::string_view utf8);

/// The offset of the first byte that is not UTF-8; npos if there is none.
size_t find_invalid_utf8(std::string_view text);
bool is_ascii(std::string_view text);

/// Classes of a character, as bits.
namespace char_class {
inline constexpr uint8_t kLetter = 1, kNumber = 2, kSpace = 4, kLineEnd = 8, kMark = 16, kPunctuation = 32, kWord = 64,
                         kOther = 128;  ///< kOther: controls, formats, private use
}
/// The table of classes of all characters, indexed by code point.
const uint8_t* char_classes();
inline bool is_char(char32_t value, uint8_t classes) {
  return value < 0x110000 && (char_classes()[value] & classes) != 0;
}
bool is_nonspacing_mark(char32_t value);

/// Appends the lower case of a character: two characters for U+0130.
void append_lower(std::string& to, char32_t value);
/// Appends the upper case of a character: SS for sharp s, and simple case mappings for all others.
void append_upper(std::string& to, char32_t value);

enum class NormalForm : uint8_t { nfc, nfd, nfkc, nfkd };
std::string normal_form(std::string_view text, NormalForm form);

/// The ends of the extended grapheme clusters of a text.
std::vector<uint32_t> grapheme_ends(std::string_view text);

}  // namespace trainctl
