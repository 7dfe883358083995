// String functions with the behaviour of Python's, shared by filters and methods.
#include "engine/text/jinja/text_functions.h"

#include "engine/text/unicode.h"

namespace trainctl::jinja {
namespace {

bool is_blank(char32_t c) {  // Python's str.isspace
  return is_char(c, char_class::kSpace) || (c >= 0x1C && c <= 0x1F);
}

template <class Each>
std::string map_characters(std::string_view text, Each each) {
  std::string result;
  bool is_first = true;
  for (size_t at = 0; at < text.size(); is_first = false) {
    const CodePoint c = code_point(text, at);
    each(result, c.value, is_first);
    at += c.bytes;
  }
  return result;
}

}  // namespace

std::string strip_text(std::string_view text, std::u32string_view characters, bool left, bool right) {
  const auto goes = [&](char32_t c) {
    return characters.empty() ? is_blank(c) : characters.find(c) != std::u32string_view::npos;
  };
  size_t begin = text.size(), end = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    if (!goes(c.value)) {
      begin = std::min(begin, at);
      end = at + c.bytes;
    }
    at += c.bytes;
  }
  if (begin == text.size()) return left || right ? std::string() : std::string(text);
  if (!left) begin = 0;
  if (!right) end = text.size();
  return std::string(text.substr(begin, end - begin));
}

std::string lower_text(std::string_view text) {
  return map_characters(text, [](std::string& to, char32_t c, bool) { append_lower(to, c); });
}

std::string upper_text(std::string_view text) {
  return map_characters(text, [](std::string& to, char32_t c, bool) { append_upper(to, c); });
}

std::string capitalize(std::string_view text) {
  return map_characters(
      text, [](std::string& to, char32_t c, bool is_first) { is_first ? append_upper(to, c) : append_lower(to, c); });
}

std::string title_text(std::string_view text) {
  bool in_word = false;
  return map_characters(text, [&](std::string& to, char32_t c, bool) {
    in_word ? append_lower(to, c) : append_upper(to, c);
    in_word = is_char(c, char_class::kLetter);
  });
}

Value split_at_blanks(std::string_view text, int64_t most) {
  List parts;
  size_t at = 0;
  const auto skip_blanks = [&] {
    while (at < text.size() && is_blank(code_point(text, at).value)) at += code_point(text, at).bytes;
  };
  for (skip_blanks(); at < text.size(); skip_blanks()) {
    const size_t begin = at;
    if (most == 0) {
      parts.emplace_back(strip_text(text.substr(begin), {}, false, true));
      break;
    }
    while (at < text.size() && !is_blank(code_point(text, at).value)) at += code_point(text, at).bytes;
    parts.emplace_back(std::string(text.substr(begin, at - begin)));
    --most;
  }
  return parts;
}

std::string replace_text(std::string_view text, std::string_view what, std::string_view with, int64_t most) {
  std::string result;
  size_t at = 0;
  for (; most != 0; --most) {
    require_text_fits(result.size());
    if (what.empty()) {  // before each character, and at the end
      result += with;
      if (at == text.size()) break;
      const size_t bytes = code_point(text, at).bytes;
      result += text.substr(at, bytes);
      at += bytes;
      continue;
    }
    const size_t found = text.find(what, at);
    if (found == std::string_view::npos) break;
    result += text.substr(at, found - at);
    result += with;
    at = found + what.size();
  }
  return result += text.substr(at);
}

}  // namespace trainctl::jinja
