// Colors the text of a plan. An unindented line is a heading that begins a section. Words are colored by their form
// within each section.
#include "cli/render/plan_colors.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>

#include "cli/render/terminal.h"

namespace trainctl {
namespace {

bool is_number(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) { return std::isdigit(c) != 0; });
}

/// Color of a schedule's task (F3, B12, W0) or of idle time.
std::optional<Paint> of_task(std::string_view word) {
  if (word == "." || word == "--") return Paint::dim;
  word.remove_prefix(std::min(word.find_first_not_of("[|"), word.size()));
  word = word.substr(0, word.find(']'));
  if (word.size() < 2 || !is_number(word.substr(1, word.find('.') - 1))) return {};
  if (word[0] == 'F') return Paint::green;
  if (word[0] == 'B') return Paint::blue;
  return word[0] == 'W' ? std::optional(Paint::magenta) : std::nullopt;
}

/// Returns whether the word is a sharded dim, e.g. "4@0.1,": 4 ways over axes 0 and 1.
bool is_cut(std::string_view word) {
  const size_t at = word.find('@');
  return at != std::string_view::npos && std::isdigit(static_cast<unsigned char>(word[at - (at > 0 ? 1 : 0)])) != 0;
}

/// `in_kinds`: whether the word is in the column "kind".
std::optional<Paint> color_of(std::string_view word, std::string_view section, bool in_kinds) {
  if (section.starts_with("schedule")) return of_task(word);
  if (section.starts_with("search") && word == "chosen") return Paint::green;
  if (section.starts_with("layers") && is_cut(word)) return Paint::cyan;
  return in_kinds ? std::optional(Paint::magenta) : std::nullopt;
}

size_t column_of(const std::string& head, const std::string& name) {
  const size_t at = head.find("  " + name + "  ");
  return at == std::string::npos ? at : at + 2;
}

/// `kinds`: start of the column "kind"; npos: there is none.
std::string color_words(const std::string& line, std::string_view section, size_t kinds) {
  std::string colored;
  for (size_t at = 0; at < line.size();) {
    const size_t begin = std::min(line.find_first_not_of(' ', at), line.size());
    const size_t end = std::min(line.find(' ', begin), line.size());
    colored.append(line, at, begin - at);
    const std::string word = line.substr(begin, end - begin);
    const std::optional<Paint> paint = color_of(word, section, begin == kinds);
    colored += paint ? painted(*paint, word) : word;
    at = end;
  }
  return colored;
}

}  // namespace

std::string color_plan(const std::string& text) {
  std::string colored, section;
  bool is_first = false;  // the line below a heading is the head of its table
  size_t kinds = std::string::npos;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    if (!line.empty() && line[0] != ' ') {
      section = line;
      kinds = std::string::npos;
      is_first = at > 0 && !line.starts_with("schedule");  // the headline's rows are not a table
      const size_t title = std::min(line.find(':'), line.size());
      const bool is_note = line.starts_with("note:");
      colored += painted(is_note ? Paint::yellow : Paint::bold, line.substr(0, title)) + line.substr(title);
    } else if (!line.empty()) {
      if (is_first) kinds = column_of(line, "kind");
      colored += is_first ? painted(Paint::dim, line) : color_words(line, section, kinds);
      is_first = false;
    }
    if (end < text.size()) colored += '\n';
    at = end + 1;
  }
  return colored;
}

}  // namespace trainctl
