// Errors about fields that a job, or a section of it, may not have.
#include "engine/spec/misplaced_fields.h"

#include <algorithm>
#include <vector>

#include "engine/base/text.h"
#include "engine/spec/foreign_names.h"
#include "engine/spec/read_fields.h"

namespace trainctl {
namespace {

/// Returns a hint for an unknown key. If one section has a field of this name: "did you mean launch.ranks?". If it is a
/// field of another tool: how to write it here. "" if no section or several sections have the field.
std::string where_it_belongs(const std::string& key) {
  const std::vector<FieldAt> found = fields_called(key);
  if (found.size() == 1) return "did you mean '" + found.front().path + "'?";
  return foreign_hint(NameKind::field, key);
}

/// Returns a hint if one section within this one has the field: "did you mean 'validation.dataset.path'?"; else "".
std::string within(const Section& section, const std::string& key) {
  std::string found;
  for (const Field& field : section.fields) {
    if (section.name.empty() || field.section == nullptr) continue;
    for (const Field& inner : field.section->fields) {
      if (inner.name != key) continue;
      if (!found.empty()) return "";
      found = section.name + "." + field.name + "." + key;
    }
  }
  return found.empty() ? "" : "did you mean '" + found + "'?";
}

/// Returns the `type` that a section gives, or the default type. "" if the type is invalid, or if the section has no
/// types.
std::string type_in(const YamlNode& node, const Section& section) {
  if (section.fields.empty() || section.fields.front().name != "type") return "";
  const Field& field = section.fields.front();
  const YamlNode* given = node.find("type");
  if (given == nullptr || given->is_null()) return default_text(field, &section);
  const bool is_known = std::find(field.choices.begin(), field.choices.end(), given->text) != field.choices.end();
  return is_known ? given->text : "";
}

/// Shows how to write the one value of a section as its mapping.
std::string mapping_hint(const YamlNode& node, const Section& section, const std::string& path) {
  const Field& first = section.fields.front();
  if (node.is_scalar() && first.kind == FieldKind::choice) {
    const auto is_choice = [&](std::string_view word) {
      return std::find(first.choices.begin(), first.choices.end(), word) != first.choices.end();
    };
    if (is_choice(node.text)) return "write {" + first.name + ": " + node.text + "}";
    const ForeignName* foreign = find_foreign(NameKind::value, node.text);
    if (foreign != nullptr && is_choice(foreign->ours))
      return "write {" + first.name + ": " + std::string(foreign->ours) + "}" +
             (foreign->note.empty() ? "" : "; " + std::string(foreign->note));
  }
  if (path == "validation" && node.is_scalar())
    return "for a share of the data set write dataset: {split: {train: 0.8, validation: 0.2}} and validation: {}; for "
           "other files validation: {dataset: {path: FILES}}";
  std::vector<std::string> fields = names_of(section.fields);
  fields.resize(std::min<size_t>(fields.size(), 6));
  return "write {" + fields.front() + ": …}; fields: " + join(fields);
}

}  // namespace

void refuse_one_value(const YamlNode& node, const Section& section, const std::string& path, Problems& problems) {
  problems.add(node.pos, path, "must be a mapping, not " + describe(node), mapping_hint(node, section, path));
}

void refuse_unknown_fields(const YamlNode& node, const Section& section, JobKind kind, const std::string& what,
                           const std::string& path, Problems& problems) {
  // If there is no network, the misspelt key may be `command`.
  const bool any_kind = section.name.empty() && kind == JobKind::network && node.find("network") == nullptr;
  const std::string type = type_in(node, section);
  std::vector<std::string> all, legal;
  for (const Field& field : section.fields) {
    all.push_back(field.name);
    const bool of_type =
        type.empty() || field.only.empty() || std::find(field.only.begin(), field.only.end(), type) != field.only.end();
    if (of_type && (any_kind || belongs_to(field, kind))) legal.push_back(field.name);
  }
  YamlNode unknown;
  for (const YamlNode::Entry& entry : node.entries)
    if (std::find(all.begin(), all.end(), entry.key) == all.end())
      unknown.entries.push_back({entry.key, entry.key_pos, {}});
  refuse_unknown_keys(unknown, legal, what, path, problems, [&](const std::string& key) {
    const std::string near = nearest(key, legal);
    if (!near.empty() && edit_distance(key, near) <= 1 && foreign_hint(NameKind::field, key).empty())
      return did_you_mean(key, legal);
    const std::string hint = where_it_belongs(key);
    return hint.empty() ? within(section, key) : hint;
  });
}

void refuse_field_of_type(const Field& field, const std::string& type, const SourcePos& pos, const std::string& where,
                          Problems& problems) {
  const bool holds_out_texts = field.name == "split" && (type == "text" || type == "chat" || type == "tokens");
  problems.add(pos, where, "'" + field.name + "' is for " + in_words(field.only, " and ") + ", not for " + type,
               holds_out_texts ? "hold out a file of its own: validation: {dataset: {path: held_out.txt}}"
                               : "remove it, or use another type");
}

void refuse_field_of_job(const Field& field, const Section& section, JobKind kind, const SourcePos& pos,
                         const std::string& where, Problems& problems) {
  if (kind == JobKind::network) {
    problems.add(pos, where, "'" + field.name + "' is only for jobs with a command, but this job has a network");
    return;
  }
  std::vector<std::string> others;
  for (const Field& one : section.fields)
    if (belongs_to(one, kind)) others.push_back(one.name);
  const std::string advice = section.name.empty()
                                 ? "; the program takes its settings itself: command: [python3, train.py, --epochs, 3]"
                             : field.name == "device" ? "; the program chooses its devices itself"
                                                      : "";
  problems.add(pos, where, "'" + field.name + "' is not for jobs with a command",
               "valid fields of " + (section.name.empty() ? "a job" : section.name) +
                   " with a command: " + join(others) + advice);
}

}  // namespace trainctl
