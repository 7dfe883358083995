// The text of a YAML file as written: positions in it, and facts about quotes that the events of the parser omit.
#include "engine/spec/yaml_source.h"

#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"

namespace trainctl {
namespace {

bool is_quote(char c) { return c == '"' || c == '\''; }

}  // namespace

YamlSource::YamlSource(std::string_view text, std::string file) : text_(text), file_(std::move(file)), starts_{0} {
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] == '\n') starts_.push_back(i + 1);
}

void YamlSource::demand_text() const {
  for (size_t i = 0; i < text_.size();) {
    const std::string_view rest = text_.substr(i);
    const size_t length = utf8_length(rest);
    if (length == 0) throw SpecError(at_offset(i), "", "this byte is not valid UTF-8");
    if (rest[0] == '\r' && !rest.starts_with("\r\n"))
      throw SpecError(at_offset(i), "", "a carriage return (\\r) that does not end a line", "end lines with a newline");
    const bool is_space = rest[0] == '\t' || rest[0] == '\n' || rest[0] == '\r';
    // Marks of the writing direction (3 bytes) may be in a comment, and the emitter writes DEL as it is; fields of text
    // refuse both.
    if (length < 3 && rest[0] != '\x7f' && is_control(rest.substr(0, length)) && !is_space)
      throw SpecError(at_offset(i), "", "this control character is not allowed in a job file",
                      R"(in double quotes it may be written "\x1b")");
    i += length;
  }
}

SourcePos YamlSource::at(size_t line, size_t column) const {
  if (line >= starts_.size()) return {file_, static_cast<int>(starts_.size()), 1};
  column = std::min(column, text_.size() - starts_[line]);
  // Continues counting from the last position if possible: a line may hold a hundred thousand values, each of which
  // asks for its position.
  if (line != counted_.line || column < counted_.column) counted_ = {line, 0, 0};
  counted_.characters += count_characters(text_.substr(starts_[line] + counted_.column, column - counted_.column));
  counted_.column = column;
  return {file_, static_cast<int>(line) + 1, 1 + static_cast<int>(counted_.characters)};
}

SourcePos YamlSource::at_offset(size_t offset) const {
  const size_t line = line_of(offset);
  return at(line, offset - starts_[line]);
}

size_t YamlSource::offset_of(size_t line, size_t column) const {
  return line >= starts_.size() ? text_.size() : std::min(starts_[line] + column, text_.size());
}

size_t YamlSource::line_of(size_t offset) const {
  return static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), offset) - starts_.begin()) - 1;
}

std::string_view YamlSource::line(size_t number) const {
  if (number >= starts_.size()) return {};
  const std::string_view rest = text_.substr(starts_[number]);
  return rest.substr(0, rest.find_first_of("\r\n"));
}

std::optional<size_t> YamlSource::indent_of(size_t number) const {
  const std::string_view text = line(number);
  if (text.find_first_not_of(" \t") == std::string_view::npos) return std::nullopt;
  return text.find_first_not_of(' ');
}

std::optional<QuotedText> YamlSource::quoted_at(size_t offset) const {
  while (offset < text_.size() && (text_[offset] == '&' || text_[offset] == '!')) {
    offset = std::min(text_.find_first_of(" \t\r\n", offset), text_.size());
    offset = std::min(text_.find_first_not_of(" \t\r\n", offset), text_.size());
  }
  if (offset >= text_.size() || !is_quote(text_[offset])) return std::nullopt;
  QuotedText found{offset, std::nullopt};
  const char quote = text_[offset];
  for (size_t i = offset + 1; i < text_.size() && !found.close; ++i) {
    const bool doubled = quote == '\'' && text_.substr(i).starts_with("''");
    if (doubled || (quote == '"' && text_[i] == '\\'))
      ++i;  // an escaped quote, '' or \", does not close the text
    else if (text_[i] == quote)
      found.close = i;
  }
  return found;
}

std::optional<QuotedText> YamlSource::next_quoted(size_t offset) const {
  constexpr std::string_view kBefore = " \t\n[{,:";
  for (size_t i = offset; i < text_.size(); ++i)
    if (is_quote(text_[i]) && (i == 0 || kBefore.find(text_[i - 1]) != std::string_view::npos)) return quoted_at(i);
  return std::nullopt;
}

std::optional<size_t> YamlSource::unclosed_bracket(size_t end) const {
  constexpr std::string_view kBefore = " \t\n[{,:";  // elsewhere a bracket is part of a text, such as ${d}
  std::vector<size_t> open;
  for (size_t i = 0; i < std::min(end, text_.size()); ++i) {
    const char c = text_[i];
    const bool begins = i == 0 || kBefore.find(text_[i - 1]) != std::string_view::npos;
    if (begins && c == '#') {
      i = std::min(text_.find('\n', i), text_.size());
    } else if (begins && is_quote(c)) {
      const std::optional<QuotedText> quoted = quoted_at(i);
      i = quoted && quoted->close ? *quoted->close : i;
    } else if (begins && (c == '[' || c == '{')) {
      open.push_back(i);
    } else if ((c == ']' || c == '}') && !open.empty()) {
      open.pop_back();
    }
  }
  return open.empty() ? std::nullopt : std::optional(open.back());
}

}  // namespace trainctl
