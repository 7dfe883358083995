// Finds the names of other tools in their table, whose rows are in foreign_fields.cpp, foreign_layers.cpp and
// foreign_types.cpp.
#include "engine/spec/foreign_names.h"

#include <algorithm>

#include "engine/base/text.h"

namespace trainctl {
namespace {

const std::vector<ForeignName>& all_names() {
  static const std::vector<ForeignName> kNames = [] {
    std::vector<ForeignName> names;
    for (const std::span<const ForeignName> part : {foreign_fields(), foreign_layers(), foreign_types()})
      names.insert(names.end(), part.begin(), part.end());
    return names;
  }();
  return kNames;
}

/// Returns a name in lower case, without '_', '-' and a preceding module: "nn.BatchNorm2d" becomes "batchnorm2d".
std::string plain(std::string_view name) {
  if (const size_t dot = name.rfind('.'); dot != std::string_view::npos) name.remove_prefix(dot + 1);
  std::string text;
  for (const char c : name)
    if (c != '_' && c != '-' && c != ' ') text += lower_case(c);
  return text;
}

bool has_name(const ForeignName& entry, const std::string& name) {
  std::string_view rest = entry.names;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(' '), rest.size());
    if (plain(rest.substr(0, end)) == name) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

}  // namespace

std::string_view to_string(NameKind kind) {
  static constexpr std::string_view kKinds[] = {"field",  "layer",    "layer field", "loss", "optimizer",
                                                "metric", "data set", "transform",   "value"};
  return kKinds[static_cast<size_t>(kind)];
}

std::span<const ForeignName> foreign_names() { return all_names(); }

const ForeignName* find_foreign(NameKind kind, std::string_view name) {
  const std::string wanted = plain(name);
  if (wanted.empty()) return nullptr;
  for (const ForeignName& entry : all_names())
    if (entry.kind == kind && has_name(entry, wanted)) return &entry;
  return nullptr;
}

std::vector<const ForeignName*> find_foreign(std::string_view name) {
  std::vector<const ForeignName*> found;
  const std::string wanted = plain(name);
  for (const ForeignName& entry : all_names())
    if (!wanted.empty() && has_name(entry, wanted)) found.push_back(&entry);
  return found;
}

std::string hint_of(const ForeignName& name) {
  if (name.example.empty()) return std::string(name.note);
  return "write " + std::string(name.example) + (name.note.empty() ? "" : "; " + std::string(name.note));
}

std::string foreign_hint(NameKind kind, std::string_view name) {
  const ForeignName* found = find_foreign(kind, name);
  return found == nullptr ? "" : hint_of(*found);
}

std::string same_name(std::string_view word, const std::vector<std::string>& names) {
  const std::string wanted = plain(word);
  for (const std::string& name : names)
    for (const char* ending : {"", "loss", "lr", "layer", "optimizer", "dataset"})
      if (!wanted.empty() && wanted == plain(name) + ending) return name;
  return "";
}

std::vector<std::string> accepted_synonyms(const Field& field) {
  if (field.name == "device") return {"gpu"};
  return {};
}

std::string accepted_synonym(const Field& field, const std::string& word) {
  for (const std::string& synonym : accepted_synonyms(field))
    if (word == synonym) return std::string(find_foreign(NameKind::value, word)->ours);
  return "";
}

}  // namespace trainctl
