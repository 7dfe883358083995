// Fills in the templates of templates/clusters.
#include "launcher/clusters/fill.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.h"

namespace trainctl::clusters {
namespace {

constexpr std::string_view kOpen = "{{", kClose = "}}";

struct Hole {
  size_t begin = 0, end = 0;  ///< position of {{name}} in its line
  std::string name;
};

std::optional<Hole> next_hole(const std::string& line, size_t from) {
  const size_t begin = line.find(kOpen, from);
  if (begin == std::string::npos) return std::nullopt;
  const size_t end = line.find(kClose, begin);
  check(end != std::string::npos, "a template closes every {{: " + line);
  return Hole{begin, end + kClose.size(), line.substr(begin + kOpen.size(), end - begin - kOpen.size())};
}

const std::string& value_of(const Hole& hole, const Values& values) {
  const auto at = values.find(hole.name);
  check(at != values.end(), "every value of a template is set: " + hole.name);
  return at->second;
}

/// The line once for each line of the value.
std::string repeated(const std::string& line, const Hole& hole, const std::string& value) {
  std::istringstream lines(value);
  std::string out;
  for (std::string one; std::getline(lines, one);)
    out += one.empty() ? "\n" : line.substr(0, hole.begin) + one + line.substr(hole.end) + "\n";
  return out;
}

std::string fill_line(std::string line, const Values& values) {
  auto hole = next_hole(line, 0);
  if (!hole) return line + "\n";
  const std::string& first = value_of(*hole, values);
  const bool is_only = !next_hole(line, hole->end);
  if (is_only && (first.empty() || first.find('\n') != std::string::npos)) return repeated(line, *hole, first);
  while (hole) {
    const std::string& value = value_of(*hole, values);
    line.replace(hole->begin, hole->end - hole->begin, value);
    hole = next_hole(line, hole->begin + value.size());
  }
  return line + "\n";
}

}  // namespace

std::string fill(std::string_view text, const Values& values) {
  std::istringstream lines{std::string(text)};
  std::string out;
  for (std::string line; std::getline(lines, line);) out += fill_line(line, values);
  return out;
}

std::string shell_word(const std::string& text) {
  const bool is_plain = !text.empty() && text.find_first_not_of(
                                             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                             "0123456789_-./=:,@%+") == std::string::npos;
  if (is_plain) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string yaml_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace trainctl::clusters
