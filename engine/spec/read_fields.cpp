// Reads a mapping by its fields.
#include "engine/spec/read_fields.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "engine/base/text.h"
#include "engine/spec/foreign_names.h"
#include "engine/spec/read_value.h"

namespace trainctl {

namespace {

/// Invisible characters, and some that look like a space, which copied text and joined files contain.
constexpr std::pair<std::string_view, std::string_view> kInvisible[] = {
    {"\xE2\x80\x8B", "\\u200b"}, {"\xE2\x80\x8C", "\\u200c"}, {"\xE2\x80\x8D", "\\u200d"}, {"\xE2\x81\xA0", "\\u2060"},
    {"\xEF\xBB\xBF", "\\ufeff"}, {"\xC2\xAD", "\\u00ad"},     {"\xC2\xA0", "\\u00a0"}};

/// Returns a key with escapes in place of invisible characters.
std::string visible_key(std::string key) {
  for (const auto& [bytes, escape] : kInvisible)
    for (size_t at = key.find(bytes); at != std::string::npos; at = key.find(bytes, at + escape.size()))
      key.replace(at, bytes.size(), escape);
  return key;
}

constexpr size_t kMaxRules = 10'000;

}  // namespace

/// Returns a hint for an unknown key: the known field with the most similar name, or else the field that another tool
/// calls so.
static std::string hint_for_unknown(const std::string& key, const std::vector<std::string>& known) {
  const std::string near = nearest(key, known);
  if (!near.empty() && edit_distance(key, near) <= 1) return did_you_mean(key, known);
  for (const ForeignName* name : find_foreign(key)) {
    const bool is_known = std::find(known.begin(), known.end(), name->ours) != known.end();
    if (name->kind == NameKind::layer_field && (is_known || name->ours.empty())) return hint_of(*name);
  }
  return near.empty() ? "" : did_you_mean(key, known);
}

/// Returns how to write "epochs:1" or "epochs=1", which are keys without a value in YAML; "" for any other key.
static std::string separator_hint(const std::string& key) {
  const size_t at = key.find_first_of(":=");
  if (at == std::string::npos || at == 0 || at + 1 == key.size()) return "";
  return "write '" + key.substr(0, at) + ": " + key.substr(at + 1) + "', with a space after the colon";
}

void refuse_unknown_keys(const YamlNode& node, const std::vector<std::string>& known, const std::string& what,
                         const std::string& path, Problems& problems,
                         const std::function<std::string(const std::string& key)>& elsewhere) {
  for (const YamlNode::Entry& entry : node.entries) {
    if (std::find(known.begin(), known.end(), entry.key) != known.end()) continue;
    if (problems.full()) return;
    std::string hint = separator_hint(entry.key);
    if (hint.empty() && elsewhere) hint = elsewhere(entry.key);
    if (hint.empty() && visible_key(entry.key) != entry.key)
      hint =
          "it contains an invisible character: type it "
          "again";
    if (hint.empty() && !entry.key.empty() && entry.key.find_first_not_of("0123456789") == std::string::npos)
      hint = "a number has a decimal point, not a comma: 0.1";
    if (hint.empty()) hint = hint_for_unknown(entry.key, known);
    if (hint.empty()) hint = known.empty() ? what + " has no fields" : "valid fields of " + what + ": " + join(known);
    problems.add(entry.key_pos, at_key(path, visible_key(entry.key)), "unknown field '" + visible_key(entry.key) + "'",
                 hint);
  }
}

namespace {

/// Reads `init`, which is a mapping of a type and its fields, or the name of a type, into attrs such as "init.type" and
/// "init.std".
void read_initial(const YamlNode& node, const Field& field, const std::string& path, Attrs& attrs, Problems& problems) {
  const YamlNode* type = node.is_map() ? node.find("type") : &node;
  const std::string known = "one of " + join(names_of(initial_types()));
  if (type == nullptr || type->is_null()) return problems.add(node.pos, path, field.name + " needs 'type'", known);
  const EntryType* found = type->is_scalar() ? find_type(initial_types(), type->text) : nullptr;
  if (found == nullptr) {
    const std::string near = type->is_scalar() ? did_you_mean(type->text, names_of(initial_types())) : "";
    return problems.add(type->pos, path, "unknown initial values " + describe(*type), near.empty() ? known : near);
  }
  std::vector<std::string> names = names_of(found->fields);
  names.insert(names.begin(), "type");
  refuse_unknown_keys(node, names, found->name, path, problems);
  attrs.set(nested_attr(field.name, "type"), found->name);
  for (const auto& [name, value] : read_attrs(node, found->fields, found->name, path, problems))
    attrs.set(nested_attr(field.name, name), value);
}

}  // namespace

namespace {

/// Finds the value of a field, which may be inside a mapping of its own (such as `init`). Null if it is not given.
const YamlNode* find_value(const YamlNode& node, const Field& field) {
  const std::string mapping = mapping_of(field);
  if (mapping.empty()) return node.find(field.name);
  const YamlNode* inner = node.find(mapping);
  return inner != nullptr && inner->is_map() ? inner->find(field.name.substr(mapping.size() + 1)) : nullptr;
}

/// Checks the mappings that contain some of the fields.
void check_mappings(const YamlNode& node, const std::vector<Field>& fields, const std::string& path,
                    Problems& problems) {
  std::map<std::string, std::vector<std::string>> keys;
  for (const Field& field : fields)
    if (const std::string mapping = mapping_of(field); !mapping.empty())
      keys[mapping].push_back(field.name.substr(mapping.size() + 1));
  for (const auto& [mapping, known] : keys) {
    const YamlNode* inner = node.find(mapping);
    if (inner == nullptr || inner->is_null()) continue;
    if (inner->is_map())
      refuse_unknown_keys(*inner, known, mapping, at_key(path, mapping), problems);
    else
      problems.add(inner->pos, at_key(path, mapping), "must be a mapping, not " + describe(*inner),
                   "its fields are " + join(known));
  }
}

}  // namespace

/// Returns whether the mapping has the field misspelt or under the name of another tool, which is an error of its own.
static bool has_foreign_name(const YamlNode& node, const std::vector<Field>& fields, const std::string& field) {
  const auto is_own = [&](const std::string& key) {
    return std::any_of(fields.begin(), fields.end(), [&](const Field& one) { return one.name == key; });
  };
  return std::any_of(node.entries.begin(), node.entries.end(), [&](const YamlNode::Entry& entry) {
    const ForeignName* known = find_foreign(NameKind::layer_field, entry.key);
    const bool is_meant = (known != nullptr && known->ours == field) || nearest(entry.key, {field}) == field;
    return is_meant && !is_own(entry.key);
  });
}

Attrs read_attrs(const YamlNode& node, const std::vector<Field>& fields, const std::string& what,
                 const std::string& path, Problems& problems) {
  Attrs attrs;
  check_mappings(node, fields, path, problems);
  for (const Field& field : fields) {
    const YamlNode* value = find_value(node, field);
    if (value && !value->is_null() && field.kind == FieldKind::initial) {
      read_initial(*value, field, at_key(path, field.name), attrs, problems);
    } else if (value && !value->is_null()) {
      if (std::optional<Value> read = read_value(*value, field, at_key(path, field.name), problems))
        attrs.set(field.name, std::move(*read));
    } else if (field.is_required) {
      if (value == nullptr && has_foreign_name(node, fields, field.name)) continue;
      problems.add(value ? value->pos : node.pos, path, what + " needs '" + field.name + "'",
                   field.name + ": " + kind_text(field));
    } else if (field.fallback) {
      attrs.set(field.name, *field.fallback);
    }
  }
  return attrs;
}

bool demand_map(const YamlNode& node, const std::string& path, const std::string& example, Problems& problems) {
  if (!node.is_map()) problems.add(node.pos, path, "must be a mapping, not " + describe(node), example);
  return node.is_map() && demand_few(node.pos, path, node.entries.size(), problems);
}

bool demand_few(const SourcePos& pos, const std::string& path, size_t rules, Problems& problems) {
  if (rules <= kMaxRules) return true;
  problems.add(pos, path, "has " + std::to_string(rules) + " entries; " + std::to_string(kMaxRules) + " is the limit",
               "select several layers with one glob");
  return false;
}

}  // namespace trainctl
