// Reads the fields of dataset that have a form of their own.
#include "engine/spec/read_dataset.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/text.h"
#include "engine/spec/field_makers.h"
#include "engine/spec/foreign_names.h"
#include "engine/spec/network.h"
#include "engine/spec/read_fields.h"
#include "engine/spec/read_value.h"

namespace trainctl {
namespace {

/// `hwc2chw`, `{resize: [28, 28]}` or `{rescale: {scale: 2}}`.
void read_transform(const YamlNode& node, DatasetSpec& set, const std::string& path, const std::string& field,
                    Problems& problems) {
  const bool one_key = node.is_map() && node.entries.size() == 1;
  if (!one_key && !node.is_scalar()) {
    problems.add(node.pos, path, "must be one transform, not " + describe(node), "e.g. {resize: [28, 28]} or hwc2chw");
    return;
  }
  const std::string name = one_key ? node.entries[0].key : node.text;
  const std::vector<std::string> all = names_of(transform_types());
  const EntryType* type = find_type(transform_types(), name);
  if (!type) {
    std::string guess = foreign_hint(NameKind::transform, name);
    if (const std::string same = same_name(name, all); guess.empty() && !same.empty()) guess = "write " + same;
    if (guess.empty()) guess = did_you_mean(name, all);
    problems.add(one_key ? node.entries[0].key_pos : node.pos, path, "unknown transform '" + name + "'",
                 guess.empty() ? "one of " + join(all) : guess);
    return;
  }
  static const YamlNode kNothing;
  const YamlNode& value = one_key ? node.entries[0].value : kNothing;
  TransformSpec spec{name, {}, path, field};
  if (value.is_map()) {
    refuse_unknown_keys(value, names_of(type->fields), name, path, problems);
    spec.attrs = read_attrs(value, type->fields, name, path, problems);
  } else if (value.is_null()) {
    YamlNode empty;
    empty.pos = node.pos;
    spec.attrs = read_attrs(empty, type->fields, name, path, problems);
  } else if (const Field* bare = bare_value_field(*type); bare != nullptr) {
    for (const Field& other : type->fields)
      if (&other != bare && other.fallback) spec.attrs.set(other.name, *other.fallback);
    if (std::optional<Value> read = read_value(value, *bare, path, problems))
      spec.attrs.set(bare->name, std::move(*read));
  } else {
    problems.add(value.pos, path, name + " must be a mapping, not " + describe(value),
                 type->fields.empty() ? "write only " + name : "fields: " + join(names_of(type->fields)));
  }
  set.transforms.push_back(std::move(spec));
}

void read_transforms_of(const YamlNode& node, DatasetSpec& set, const std::string& path, const std::string& field,
                        Problems& problems) {
  if (!node.is_list()) {
    problems.add(node.pos, path, "must be a list, not " + describe(node), "e.g. [{resize: [28, 28]}, hwc2chw]");
    return;
  }
  for (size_t i = 0; i < node.items.size(); ++i) read_transform(node.items[i], set, at_index(path, i), field, problems);
}

}  // namespace

void read_paths(const YamlNode& node, const std::string& path, std::vector<std::string>& to, Problems& problems) {
  static const Field one = text("path", "");
  const bool is_list = node.is_list();
  if (is_list && node.items.empty()) problems.add(node.pos, path, "must name at least one file");
  for (size_t i = 0; i < (is_list ? node.items.size() : 1); ++i) {
    const YamlNode& item = is_list ? node.items[i] : node;
    const std::string where = is_list ? at_index(path, i) : path;
    if (item.is_scalar() && (item.text.starts_with("~") || item.text.starts_with("$")))
      problems.add(item.pos, where,
                   item.text.substr(0, item.text.find('/')) + " is shell syntax, which is not expanded here",
                   "write the whole path, such as /home/me/data, or one that is relative to the job file");
    else if (std::optional<Value> value = read_value(item, one, where, problems))
      to.push_back(std::get<std::string>(*value));
  }
}

std::vector<SourceShare> read_shares(const YamlNode& node, const std::string& path, Problems& problems) {
  std::vector<SourceShare> all;
  if (!demand_map(node, path, "e.g. {code: 0.3, web: 0.7}", problems)) return all;
  if (node.entries.empty()) problems.add(node.pos, path, "must name at least one source");
  static const Field share = number("share", "").required().at_least(0);
  for (const YamlNode::Entry& entry : node.entries)
    if (const std::optional<Value> value = read_value(entry.value, share, at_key(path, entry.key), problems))
      all.push_back({entry.key, std::get<double>(*value)});
  return all;
}

void read_share_changes(const YamlNode& node, DatasetSpec& mix, const std::string& path, Problems& problems) {
  if (!node.is_list()) {
    problems.add(node.pos, path, "must be a list, not " + describe(node), "e.g. [{step: 1000, mix: {code: 1}}]");
    return;
  }
  static const Field count = integer("step", "").at_least(0).at_most(kMaxSteps);
  for (size_t i = 0; i < node.items.size(); ++i) {
    const YamlNode& item = node.items[i];
    const std::string where = at_index(path, i);
    if (!demand_map(item, where, "e.g. {step: 1000, mix: {code: 1}}", problems)) continue;
    refuse_unknown_keys(item, {"step", "mix", "ramp"}, "mix_schedule", where, problems);
    ShareChange change;
    change.path = where;
    const auto read = [&](const char* name, int64_t& to) {
      const YamlNode* value = item.find(name);
      if (value == nullptr || value->is_null()) return false;
      if (const std::optional<Value> v = read_value(*value, count, at_key(where, name), problems))
        to = std::get<int64_t>(*v);
      return true;
    };
    const YamlNode* of = item.find("mix");
    if (!read("step", change.step) || of == nullptr)
      problems.add(item.pos, where, "needs 'step' and 'mix'", "e.g. {step: 1000, mix: {code: 1}}");
    read("ramp", change.ramp);
    if (of != nullptr) change.shares = read_shares(*of, at_key(where, "mix"), problems);
    mix.mix_schedule.push_back(std::move(change));
  }
}

void read_named_paths(const YamlNode& node, DatasetSpec& set, const std::string& path, Problems& problems) {
  if (!demand_map(node, path, "e.g. {code: code/held_out.jsonl}", problems)) return;
  for (const YamlNode::Entry& entry : node.entries) {
    std::vector<std::string> list;
    read_paths(entry.value, at_key(path, entry.key), list, problems);
    set.source_paths.emplace_back(entry.key, std::move(list));
  }
}

void read_sample_fields(const YamlNode& node, DatasetSpec& set, const std::string& path, Problems& problems) {
  if (!demand_map(node, path, "e.g. {features: [age, height], label: species}", problems)) return;
  if (node.entries.empty()) problems.add(node.pos, path, "must name at least one field");
  for (const YamlNode::Entry& entry : node.entries) {
    const std::string where = at_key(path, entry.key);
    if (!is_sample_field_name(entry.key))
      problems.add(entry.key_pos, where, "'" + entry.key + "' is not a valid name for a sample field",
                   "use letters, digits, '_' and '-', but not input, loss or grad");
    std::vector<std::string> parts = read_texts(entry.value, where, "a text", problems);
    if (parts.empty() && entry.value.is_list()) problems.add(entry.value.pos, where, "must not be an empty list");
    set.fields.push_back({entry.key, std::move(parts)});
  }
}

void read_split(const YamlNode& node, const Field& field, void* object, const std::string& path, Problems& problems) {
  if (node.is_list()) {
    problems.add(node.pos, path, "must be a name or a mapping, not a list", "write {train: 0.8, validation: 0.2}");
    return;
  }
  Field one = field;
  if (const auto share = node.is_scalar() ? parse_number(node.text) : std::nullopt; share && *share > 0 && *share < 1) {
    const std::string text = to_string(Value(*share)), rest = to_string(Value(1 - *share));
    const bool is_validation = *share <= 0.5;
    problems.add(
        node.pos, path, "must be the name of a split or a mapping with the shares, not '" + node.text + "'",
        "write {train: " + (is_validation ? rest : text) + ", validation: " + (is_validation ? text : rest) + "}");
    return;
  }
  if (!node.is_map()) {
    one.kind = FieldKind::choice;
    if (std::optional<Value> value = read_value(node, one, path, problems)) set_value(field, object, std::move(*value));
    return;
  }
  refuse_unknown_keys(node, {"train", "validation"}, "split", path, problems);
  one = number("share", "").required().at_least(0).at_most(1);
  const auto share = [&](const char* name, double& to) {
    const YamlNode* value = node.find(name);
    if (value == nullptr || value->is_null())
      return problems.add(node.pos, path, "needs 'train' and 'validation'", "e.g. {train: 0.9, validation: 0.1}");
    if (const std::optional<Value> read = read_value(*value, one, at_key(path, name), problems))
      to = std::get<double>(*read);
  };
  auto& set = *static_cast<DatasetSpec*>(object);
  share("train", set.train_share);
  share("validation", set.validation_share);
  if (set.train_share + set.validation_share > 1 + 1e-9)
    problems.add(node.pos, path, "the sum of train and validation is greater than 1");
}

void read_transforms(const YamlNode& node, DatasetSpec& set, const std::string& path, Problems& problems) {
  if (node.is_map() && !node.entries.empty()) {
    const std::vector<std::string> known = set.field_names();
    for (const YamlNode::Entry& entry : node.entries) {
      const std::string where = at_key(path, entry.key);
      if (std::find(known.begin(), known.end(), entry.key) == known.end())
        problems.add(entry.key_pos, where, "the samples have no field '" + entry.key + "'", "fields: " + join(known));
      read_transforms_of(entry.value, set, where, entry.key, problems);
    }
    return;
  }
  read_transforms_of(node, set, path, "", problems);
}

}  // namespace trainctl
