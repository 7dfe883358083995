// Reads `command` and `env` as text, never as numbers or flags.
#include "engine/spec/read_command.h"

#include <algorithm>
#include <array>
#include <optional>

#include "engine/base/text.h"
#include "engine/spec/read_value.h"

namespace trainctl {
namespace {

constexpr std::array<std::string_view, 11> kReserved = {
    "RANK",      "LOCAL_RANK", "WORLD_SIZE",      "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "ROLE_RANK", "ROLE_NAME",  "ROLE_WORLD_SIZE", "MASTER_ADDR",      "MASTER_PORT"};

/// Reads a word of a command or the value of a variable. Returns nullopt after reporting a problem.
std::optional<std::string> read_word(const YamlNode& node, const std::string& path, Problems& problems) {
  if (!node.is_scalar()) {
    problems.add(node.pos, path, "must be text, not " + describe(node),
                 node.is_null() ? "put it in quotes: \"\", \"null\" or \"~\"" : "");
  } else if (node.text.find('\0') != std::string::npos) {
    problems.add(node.pos, path, "contains a zero byte, which cannot be passed to a program");
  } else {
    return node.text;
  }
  return {};
}

/// "python3 train.py" -> "[python3, train.py]".
std::string as_list(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; (at = text.find_first_not_of(" \t\n", at)) != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(" \t\n", at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return "[" + join(words) + "]";
}

}  // namespace

std::vector<std::string> read_command(const YamlNode& node, const std::string& path, Problems& problems) {
  if (!node.is_list()) {
    const bool plain = node.is_scalar() && node.text.find_first_of("\"'$|&;<>*?`\\\n,[]{}#:") == std::string::npos;
    problems.add(
        node.pos, path, "must be a list of words, not " + describe(node),
        plain ? "write " + as_list(node.text) : "e.g. [python3, train.py], or [sh, -c, \"…\"] for a shell command");
    return {};
  }
  std::vector<std::string> words;
  for (size_t i = 0; i < node.items.size(); ++i) {
    const YamlNode& item = node.items[i];
    std::optional<std::string> word = read_word(item, at_index(path, i), problems);
    if (!word) continue;
    if (i == 0 && word->empty()) problems.add(item.pos, at_index(path, i), "the program has no name");
    words.push_back(std::move(*word));
  }
  if (node.items.empty()) problems.add(node.pos, path, "names no program", "e.g. [python3, train.py]");
  return words;
}

std::map<std::string, std::string> read_environment(const YamlNode& node, const std::string& path, Problems& problems) {
  if (!node.is_map()) {
    problems.add(node.pos, path, "must be a mapping, not " + describe(node), "e.g. {NCCL_DEBUG: INFO}");
    return {};
  }
  std::map<std::string, std::string> variables;
  for (const YamlNode::Entry& entry : node.entries) {
    const std::string where = at_key(path, entry.key);
    if (entry.key.empty() || entry.key.find('=') != std::string::npos || entry.key.find('\0') != std::string::npos) {
      problems.add(entry.key_pos, where, "'" + entry.key + "' is not a valid variable name");
    } else if (is_reserved_variable(entry.key)) {
      problems.add(entry.key_pos, where, "'" + entry.key + "' is set by trainctl", "remove it");
    } else if (std::optional<std::string> value = read_word(entry.value, where, problems)) {
      variables[entry.key] = std::move(*value);
    }
  }
  return variables;
}

std::string variable_name_pattern() {
  return "^(?!(" + join({kReserved.begin(), kReserved.end()}, "|") + ")$|TORCHELASTIC_|TRAINCTL_)[^=\\u0000]+$";
}

bool is_reserved_variable(std::string_view name) {
  return name.starts_with("TORCHELASTIC_") || name.starts_with("TRAINCTL_") ||
         std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end();
}

}  // namespace trainctl
