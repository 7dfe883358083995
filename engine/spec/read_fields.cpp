// Reads a mapping by its fields.
#include "engine/spec/read_fields.h"

#include <algorithm>

#include "engine/base/text.h"
#include "engine/spec/read_value.h"

namespace trainctl {

void refuse_unknown_keys(const YamlNode& node, const std::vector<std::string>& known, const std::string& what,
                         const std::string& path, Problems& problems,
                         const std::function<std::string(const std::string& key)>& elsewhere) {
  for (const YamlNode::Entry& entry : node.entries) {
    if (std::find(known.begin(), known.end(), entry.key) != known.end()) continue;
    if (problems.full()) return;
    std::string hint = elsewhere ? elsewhere(entry.key) : "";
    if (hint.empty()) hint = did_you_mean(entry.key, known);
    if (hint.empty()) hint = known.empty() ? what + " takes no fields" : what + " takes " + join(known);
    problems.add(entry.key_pos, at_key(path, entry.key), "unknown field '" + entry.key + "'", hint);
  }
}

Attrs read_attrs(const YamlNode& node, const std::vector<Field>& fields, const std::string& what,
                 const std::string& path, Problems& problems) {
  Attrs attrs;
  for (const Field& field : fields) {
    const YamlNode* value = node.find(field.name);
    if (value && !value->is_null()) {
      if (std::optional<Value> read = read_value(*value, field, at_key(path, field.name), problems))
        attrs.set(field.name, std::move(*read));
    } else if (field.is_required) {
      problems.add(value ? value->pos : node.pos, path, what + " needs '" + field.name + "'",
                   field.name + ": " + kind_text(field));
    } else if (field.fallback) {
      attrs.set(field.name, *field.fallback);
    }
  }
  return attrs;
}

}  // namespace trainctl
