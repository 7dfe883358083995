// Reads optimizer.groups.
#include "engine/spec/read_parameter_groups.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "engine/spec/fields.h"
#include "engine/spec/read_fields.h"
#include "engine/spec/read_value.h"

namespace trainctl {
namespace {

void read_parameter_group(const YamlNode& node, const EntryType& type, const std::string& path,
                          OptimizerSpec& optimizer, Problems& problems) {
  if (!node.is_map()) {
    problems.add(node.pos, path, "must be a mapping, not " + describe(node),
                 "e.g. {parameters: ['*.bias'], weight_decay: 0}");
    return;
  }
  std::vector<Field> fields = parameter_group_fields();
  std::vector<std::string> known = names_of(fields), shared;
  for (const Field& field : type.fields) {
    const auto& same = type.same_in_groups;
    const bool is_shared = std::find(same.begin(), same.end(), field.name) != same.end();
    (is_shared ? shared : known).push_back(field.name);
    if (!is_shared) fields.push_back(field);
  }
  refuse_unknown_keys(node, known, "a group of " + type.name, path, problems, [&](const std::string& key) {
    const bool is_shared = std::find(shared.begin(), shared.end(), key) != shared.end();
    return is_shared ? "it applies to all parameters; set optimizer." + key : std::string();
  });
  ParameterGroup group;
  group.path = path;
  for (const Field& field : fields) {
    const YamlNode* value = node.find(field.name);
    const std::string where = at_key(path, field.name);
    if (value == nullptr || value->is_null()) {
      if (field.is_required) problems.add(node.pos, path, "a group needs '" + field.name + "'", kind_text(field));
    } else if (field.kind == FieldKind::patterns) {
      group.patterns = read_texts(*value, where, "a name or a glob", problems);
      if (value->is_list() && value->items.empty()) problems.add(value->pos, where, "must name at least one parameter");
    } else if (std::optional<Value> read = read_value(*value, field, where, problems)) {
      group.attrs.set(field.name, std::move(*read));
    }
  }
  group.learning_rate_scale = group.attrs.number("learning_rate_scale", 1.0);
  group.attrs.erase("learning_rate_scale");
  optimizer.groups.push_back(std::move(group));
}

}  // namespace

void read_parameter_groups(const YamlNode& node, const std::string& path, OptimizerSpec& optimizer,
                           Problems& problems) {
  if (!node.is_list()) {
    problems.add(node.pos, path, "must be a list, not " + describe(node),
                 "e.g. [{parameters: ['*.bias'], weight_decay: 0}]");
    return;
  }
  const EntryType* type = find_type(optimizer_types(), optimizer.type);
  if (type == nullptr || problems.touch("optimizer.type") || !demand_few(node.pos, path, node.items.size(), problems))
    return;
  for (size_t i = 0; i < node.items.size(); ++i)
    read_parameter_group(node.items[i], *type, at_index(path, i), optimizer, problems);
}

}  // namespace trainctl
