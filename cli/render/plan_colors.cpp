// A line at the left edge is a heading; what follows is its section. Words are painted by what they look like there.
#include "cli/render/plan_colors.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>

#include "cli/render/terminal.h"

namespace trainctl {
namespace {

constexpr std::array<std::string_view, 9> kKinds = {"all_reduce", "all_gather", "reduce_scatter",
                                                    "all_to_all", "broadcast",  "send",
                                                    "recv",       "slice",      "gather"};

bool is_number(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) { return std::isdigit(c) != 0; });
}

/// F3, B12, W0; what stands for the time in which a stage waits.
std::optional<Paint> of_task(std::string_view word) {
  if (word == "." || word == "--") return Paint::dim;
  word.remove_prefix(std::min(word.find_first_not_of("[|"), word.size()));
  word = word.substr(0, word.find(']'));
  if (word.size() < 2 || !is_number(word.substr(1, word.find('.') - 1))) return {};
  if (word[0] == 'F') return Paint::green;
  if (word[0] == 'B') return Paint::blue;
  return word[0] == 'W' ? std::optional(Paint::magenta) : std::nullopt;
}

/// "4@0.1,": a dim that is cut 4 ways over axes 0 and 1.
bool is_cut(std::string_view word) {
  const size_t at = word.find('@');
  return at != std::string_view::npos && std::isdigit(static_cast<unsigned char>(word[at - (at > 0 ? 1 : 0)])) != 0;
}

std::optional<Paint> color_of(std::string_view word, std::string_view section) {
  if (section.starts_with("schedule")) return of_task(word);
  if (section.starts_with("search") && word == "chosen") return Paint::green;
  if (section.starts_with("layers") && is_cut(word)) return Paint::cyan;
  const bool moves = section.starts_with("redistributions") || section.starts_with("communication");
  if (moves && std::find(kKinds.begin(), kKinds.end(), word) != kKinds.end()) return Paint::magenta;
  return {};
}

std::string color_words(const std::string& line, std::string_view section) {
  std::string colored;
  for (size_t at = 0; at < line.size();) {
    const size_t begin = std::min(line.find_first_not_of(' ', at), line.size());
    const size_t end = std::min(line.find(' ', begin), line.size());
    colored.append(line, at, begin - at);
    const std::string word = line.substr(begin, end - begin);
    const std::optional<Paint> paint = color_of(word, section);
    colored += paint ? painted(*paint, word) : word;
    at = end;
  }
  return colored;
}

}  // namespace

std::string color_plan(const std::string& text) {
  std::string colored, section;
  bool is_first = false;  // below a heading: the head of its table
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    if (!line.empty() && line[0] != ' ') {
      section = line;
      is_first = !line.starts_with("schedule");
      const size_t title = std::min(line.find(':'), line.size());
      const bool is_note = line.starts_with("note:");
      colored += painted(is_note ? Paint::yellow : Paint::bold, line.substr(0, title)) + line.substr(title);
    } else if (!line.empty()) {
      colored += is_first ? painted(Paint::dim, line) : color_words(line, section);
      is_first = false;
    }
    if (end < text.size()) colored += '\n';
    at = end + 1;
  }
  return colored;
}

}  // namespace trainctl
