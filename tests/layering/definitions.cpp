// Finds the names that a source or a header defines, by its text.
#include "tests/layering/definitions.h"

#include <algorithm>
#include <cctype>
#include <regex>

namespace trainctl {

namespace {

std::string replaced(const std::string& text, const char* pattern, const char* by) {
  return std::regex_replace(text, std::regex(pattern), by);
}

/// The name without scopes.
std::string defined_name(std::string text) {
  static const std::vector<std::regex> patterns = {
      std::regex(R"(^using (\w+ = .*);)"),
      std::regex(R"(^(?:struct|class|union|enum(?: class)?) (?:alignas\(.*?\) )?(\w+)[^;]*\{)"),
      std::regex(R"(^(?:constexpr|const|static|inline|std::\w+)\b[^()]*?(\w+)(?: = |\{|\[|;))"),
      std::regex(R"(^[\w:<>,*&\s]+?[\s*&](\w+)\(([^{;]*)\)[^()]*\{)")};
  const bool is_template = text.starts_with("template <");
  text = replaced(text, R"(__\w+__(\([^()]*(\([^()]*\))*[^()]*\))?\s*|\[\[\w+\]\]\s*|^template <.*?>\s+(?=\w))", "");
  std::smatch found;
  for (const std::regex& pattern : patterns) {
    if (!std::regex_search(text, found, pattern)) continue;
    if (&pattern != &patterns.back()) return found[1];
    std::string types = replaced(found[2], R"(\s*=[^,]*|\bstd::)", "");  // overloads may differ in these alone
    types = replaced(types, R"((nlohmann::)?(ordered_)?\bjson\b)", "Json");
    types = replaced(types, R"(([\w>&*])\s+\w+(?=\s*(,|$)))", "$1");
    return found[1].str() + (is_template ? "<>(" : "(") + replaced(types, R"(\s+)", " ") + ")";
  }
  return "";
}

}  // namespace

bool Definition::is_anonymous() const { return std::find(scopes.begin(), scopes.end(), "") != scopes.end(); }

std::string Definition::name() const {
  std::string name = defined_name(text);
  if (name.empty()) return name;
  std::string prefix;
  for (const std::string& scope : scopes) prefix += scope.empty() ? "" : scope + "::";
  return prefix + name;
}

std::vector<Definition> definitions_of(std::istream& source) {
  std::vector<Definition> definitions;
  std::vector<std::string> scopes;
  std::string declaration;
  for (std::string line; std::getline(source, line);) {
    if (line == "namespace {") scopes.push_back("");
    if (line.starts_with("namespace ") && line.ends_with(" {") && line != "namespace {")
      scopes.push_back(line.substr(10, line.size() - 12));
    if (line.starts_with("}  // namespace") && !scopes.empty()) scopes.pop_back();
    if (line.starts_with("namespace")) continue;
    if (declaration.empty() && (line.empty() || !(std::isalpha(line[0]) || line[0] == '_' || line[0] == '['))) continue;
    declaration += (declaration.empty() ? "" : " ") + line;
    if (line.find_first_of("{;") == std::string::npos) continue;
    definitions.push_back({scopes, declaration});
    declaration.clear();
  }
  return definitions;
}

}  // namespace trainctl
