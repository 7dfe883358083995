// Unicode as tokenizers need it.
#include "engine/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/// True for characters of the category So that have the property Alphabetic: circled and squared letters.
bool is_alphabetic_symbol(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

/// The classes (char_class) of a character, from its category in the Unicode data.
uint8_t classify(char32_t c) {
  using namespace char_class;
  const bool joins = c == 0x200C || c == 0x200D;
  uint8_t bits = is_white_space(c) ? kSpace : 0;
  if (c == '\r' || c == '\n') bits |= kLineEnd;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return bits | kLetter | kWord;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return bits | kMark | kWord;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
      return bits | kNumber | kWord;
    case UTF8PROC_CATEGORY_NO:
      return bits | kNumber;
    case UTF8PROC_CATEGORY_PC:
      return bits | kPunctuation | kWord;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return bits | kPunctuation;
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO:
      return bits | kOther | (joins ? kWord : 0);
    default:
      return bits | (is_alphabetic_symbol(c) ? kWord : 0);
  }
}

utf8proc_option_t options_of(NormalForm form) {
  constexpr utf8proc_option_t kCompose = UTF8PROC_COMPOSE, kDecompose = UTF8PROC_DECOMPOSE;
  switch (form) {
    case NormalForm::nfc:
      return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | kCompose);
    case NormalForm::nfd:
      return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | kDecompose);
    case NormalForm::nfkc:
      return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | kCompose | UTF8PROC_COMPAT);
    default:
      return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | kDecompose | UTF8PROC_COMPAT);
  }
}

}  // namespace

CodePoint code_point(std::string_view text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  utf8proc_int32_t value = 0;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at),
                                       static_cast<utf8proc_ssize_t>(std::min<size_t>(text.size() - at, 4)), &value);
  if (length <= 0) return {kReplacement, 1};
  return {static_cast<char32_t>(value), static_cast<uint32_t>(length)};
}

void append_utf8(std::string& to, char32_t value) {
  std::array<utf8proc_uint8_t, 4> bytes;
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(value), bytes.data());
  to.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(length));
}

std::u32string to_utf32(std::string_view utf8) {
  std::u32string result;
  for (size_t at = 0; at < utf8.size();) {
    const CodePoint c = code_point(utf8, at);
    result += c.value;
    at += c.bytes;
  }
  return result;
}

size_t find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const CodePoint c = code_point(text, at);
    if (c.bytes == 1) return at;
    at += c.bytes;
  }
  return std::string_view::npos;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

const uint8_t* char_classes() {
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> classes(0x110000);
    for (size_t c = 0; c < classes.size(); ++c) classes[c] = classify(static_cast<char32_t>(c));
    return classes;
  }();
  return table.data();
}

bool is_nonspacing_mark(char32_t value) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(value)) == UTF8PROC_CATEGORY_MN;
}

void append_lower(std::string& to, char32_t value) {
  constexpr char32_t kCapitalDottedI = 0x130;
  if (value == kCapitalDottedI)
    to += "i\xCC\x87";
  else
    append_utf8(to, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(value))));
}

void append_upper(std::string& to, char32_t value) {
  constexpr char32_t kSharpS = 0xDF;
  if (value == kSharpS)
    to += "SS";
  else
    append_utf8(to, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(value))));
}

std::string normal_form(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  utf8proc_uint8_t* result = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &result, options_of(form));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length < 0) throw EnvError(std::string("text cannot be normalized: ") + utf8proc_errmsg(length));
  return std::string(reinterpret_cast<const char*>(result), static_cast<size_t>(length));
}

std::vector<uint32_t> grapheme_ends(std::string_view text) {
  std::vector<uint32_t> ends;
  utf8proc_int32_t state = 0;
  char32_t previous = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    if (at > 0 && utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(previous),
                                                   static_cast<utf8proc_int32_t>(c.value), &state))
      ends.push_back(static_cast<uint32_t>(at));
    previous = c.value;
    at += c.bytes;
  }
  if (!text.empty()) ends.push_back(static_cast<uint32_t>(text.size()));
  return ends;
}

}  // namespace trainctl
