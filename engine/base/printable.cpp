// UTF-8, and text that a terminal can show.
#include "engine/base/printable.h"

#include <algorithm>
#include <cstdio>

namespace trainctl {
namespace {

constexpr char kEscape = '\x1b';

bool is_continuation_byte(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

/// Bytes of the escape sequence at the front of `text` (ECMA-48): "ESC [ parameters final", "ESC ] … BEL" and other
/// strings up to BEL or "ESC \", "ESC intermediates final". What has no end goes to the end of the line.
size_t escape_length(std::string_view text) {
  const auto is_in = [&](size_t at, char first, char last) { return text[at] >= first && text[at] <= last; };
  size_t at = 1;
  if (at == text.size()) return at;
  const char kind = text[at];
  if (kind == '[') {
    ++at;
    while (at < text.size() && is_in(at, ' ', '?')) ++at;
    return std::min(at + 1, text.size());
  }
  if (std::string_view("]PX^_").find(kind) != std::string_view::npos) {
    for (++at; at < text.size(); ++at) {
      if (text[at] == '\a') return at + 1;
      if (text[at] == kEscape) return at + 1 < text.size() && text[at + 1] == '\\' ? at + 2 : at;
    }
    return at;
  }
  while (at < text.size() && is_in(at, ' ', '/')) ++at;
  return at < text.size() && is_in(at, '0', '~') ? at + 1 : at;
}

/// "ESC [ 1;31 m". Its parameters are numbers: private ones ("?", ">") are no colors.
bool is_color(std::string_view sequence) {
  return sequence.size() >= 3 && sequence[1] == '[' && sequence.back() == 'm' &&
         sequence.substr(2, sequence.size() - 3).find_first_not_of("0123456789;:") == std::string_view::npos;
}

std::string_view last_overwriting(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  const size_t at = line.rfind('\r');
  return at == std::string_view::npos ? line : line.substr(at + 1);
}

template <class Show>
std::string each_line(std::string_view text, const Show& show) {
  std::string result;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    result += show(text.substr(0, end));
    if (end < text.size()) result += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

}  // namespace

size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF5 ? 0 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if (!is_continuation_byte(text[i])) return 0;
  if (lead == 0xE0 && byte(1) < 0xA0) return 0;   // overlong
  if (lead == 0xED && byte(1) >= 0xA0) return 0;  // surrogates
  if (lead == 0xF0 && byte(1) < 0x90) return 0;   // overlong
  if (lead == 0xF4 && byte(1) >= 0x90) return 0;  // past U+10FFFF
  return length;
}

size_t count_characters(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) { return !is_continuation_byte(c); }));
}

std::string shortened(std::string_view text) {
  size_t size = 60;
  if (text.size() <= size) return std::string(text);
  while (size > 0 && is_continuation_byte(text[size])) --size;
  return std::string(text.substr(0, size)) + "...";
}

bool is_control(std::string_view c) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(c[i]); };
  if (c.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7F;
  if (c.size() == 2) return byte(0) == 0xC2 && byte(1) < 0xA0;
  // U+200E and U+200F; U+2028 to U+202E; U+2066 to U+2069
  if (c.size() != 3 || byte(0) != 0xE2) return false;
  if (byte(1) == 0x80) return byte(2) == 0x8E || byte(2) == 0x8F || (byte(2) >= 0xA8 && byte(2) <= 0xAE);
  return byte(1) == 0x81 && byte(2) >= 0xA6 && byte(2) <= 0xA9;
}

size_t find_unprintable(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text.substr(i));
    if (length == 0 || is_control(text.substr(i, length))) return i;
    i += length;
  }
  return std::string_view::npos;
}

std::string printable(std::string_view text) {
  std::string result;
  for (size_t at = 0; (at = find_unprintable(text)) != std::string_view::npos;) {
    result += text.substr(0, at);
    const size_t length = std::max<size_t>(1, utf8_length(text.substr(at)));
    for (const char c : text.substr(at, length)) {
      char escape[5];
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(c));
      result += escape;
    }
    text.remove_prefix(at + length);
  }
  return result.append(text);
}

std::string terminal_line(std::string_view line, bool keeps_colors) {
  constexpr std::string_view kSpecial = "\x1b\t";
  line = last_overwriting(line);
  std::string result;
  bool has_colors = false;
  for (size_t at = 0; (at = line.find_first_of(kSpecial)) != std::string_view::npos;) {
    result += printable(line.substr(0, at));
    line.remove_prefix(at);
    const size_t length = line.front() == kEscape ? escape_length(line) : 1;
    const std::string_view sequence = line.substr(0, length);
    const bool is_kept_color = keeps_colors && is_color(sequence);
    if (sequence == "\t" || is_kept_color) result += sequence;
    has_colors = has_colors || is_kept_color;
    line.remove_prefix(length);
  }
  result += printable(line);
  return has_colors ? result + "\x1b[0m" : result;
}

std::string printable_lines(std::string_view text) { return each_line(text, printable); }

std::string terminal_text(std::string_view text) {
  return each_line(text, [](std::string_view line) { return terminal_line(line); });
}

}  // namespace trainctl
