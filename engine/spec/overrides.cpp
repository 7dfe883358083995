// Overrides on the command line: `a.b=c`.
#include "engine/spec/overrides.h"

#include <algorithm>

#include "engine/base/text.h"
#include "engine/spec/fields.h"
#include "engine/spec/network.h"
#include "engine/spec/read_value.h"

namespace trainctl {
namespace {

void forget_positions(YamlNode& node) {
  node.pos = kCommandLine;
  for (YamlNode& item : node.items) forget_positions(item);
  for (YamlNode::Entry& entry : node.entries) {
    entry.key_pos = kCommandLine;
    forget_positions(entry.value);
  }
}

/// A value that is left out, as in `train.epochs=$EPOCHS` if the variable is unset. `null` and `~` are values.
bool has_empty_value(const YamlNode& node) {
  if (node.is_null()) return node.text.empty();
  return std::any_of(node.items.begin(), node.items.end(), has_empty_value) ||
         std::any_of(node.entries.begin(), node.entries.end(),
                     [](const YamlNode::Entry& entry) { return has_empty_value(entry.value); });
}

/// In `{every_steps:100}` YAML reads a key without a value. "" if there is none such.
std::string key_that_wants_a_space(const YamlNode& node) {
  for (const YamlNode::Entry& entry : node.entries)
    if (has_empty_value(entry.value) && entry.key.find(':') != std::string::npos) return entry.key;
  return "";
}

bool starts_with_name(std::string_view rest, std::string_view name) {
  return rest.starts_with(name) && (rest.size() == name.size() || rest[name.size()] == '.' || rest[name.size()] == '[');
}

/// Returns the names of the transforms in a list. A mapping such as `{resize: [28, 28]}` is named by its key, resize.
std::vector<std::string> names_of_transforms(const YamlNode& list) {
  std::vector<std::string> names;
  for (const YamlNode& item : list.items) names.push_back(item.entries.size() == 1 ? item.entries[0].key : "");
  return names;
}

/// Walks from the root to the field, one step at a time, in the tree and in the field table.
class Walk {
 public:
  Walk(YamlNode& root, std::string_view path) : node_(&root), rest_(path), section_(&job_section()) {}

  /// Returns the node to set, or null with the reason in `error`.
  YamlNode* find(std::string& error) {
    if (rest_.empty()) error = "does not name a field";
    for (int steps = 0; !rest_.empty() && error.empty(); ++steps) {
      if (steps == kMaxYamlDepth)
        error = "is nested more deeply than a job file may be";
      else if (rest_.front() == '[')
        step_index(error);
      else if (node_->is_list() && shorthand_field() == nullptr)
        step_item(error);
      else
        step_key(error);
    }
    return error.empty() ? node_ : nullptr;
  }

 private:
  void take(size_t length) {
    path_ += rest_.substr(0, length);
    rest_.remove_prefix(length);
  }

  std::string here() const {
    if (path_.empty()) return "the job";
    return path_.ends_with('.') ? path_.substr(0, path_.size() - 1) : path_;
  }

  /// The field that a value in place of the section's fields stands for; null: none.
  const Field* shorthand_field() const {
    if (field_ == nullptr || section_ == nullptr || field_->stands_for.empty()) return nullptr;
    for (const Field& field : section_->fields)
      if (field.name == field_->stands_for) return &field;
    return nullptr;
  }

  /// True if the field to set takes a list.
  bool takes_list() const {
    const Field* field = shorthand_field() != nullptr ? shorthand_field() : field_;
    if (field == nullptr) return false;
    switch (field->kind) {
      case FieldKind::ints:
      case FieldKind::numbers:
      case FieldKind::int_lists:
      case FieldKind::per_dim:
      case FieldKind::words:
      case FieldKind::names:
      case FieldKind::patterns:
      case FieldKind::paths:
      case FieldKind::transforms:
      case FieldKind::metrics:
      case FieldKind::losses:
      case FieldKind::any_names:
      case FieldKind::layers:
        return true;
      default:
        return false;
    }
  }

  void step_index(std::string& error) {
    const size_t end = rest_.find(']');
    const auto index =
        end == std::string_view::npos ? std::nullopt : parse_integer(std::string(rest_.substr(1, end - 1)));
    if (!index) {
      error = "has no index in '" + std::string(rest_) + "'";
    } else if (!node_->is_list()) {
      error = here() + (node_->is_null() && takes_list() ? " is not set" : " is " + describe(*node_) + ", not a list") +
              (takes_list() ? "; set the whole list: " + here() + "=[...]" : "");
    } else if (*index < 0 || *index >= static_cast<int64_t>(node_->items.size())) {
      error = here() + " has " + std::to_string(node_->items.size()) + " items, counted from 0";
    } else {
      node_ = &node_->items[static_cast<size_t>(*index)];
      section_ = nullptr;
      field_ = nullptr;
      take(end + 1);
      after_step(error);
    }
  }

  bool is_among_layers() const {
    return path_.starts_with("network.") || path_.starts_with("network[") || path_.starts_with("modules.");
  }

  /// `network.layer1`: the item with `name: layer1`. `dataset.transforms.resize`: the item with that key.
  void step_item(std::string& error) {
    const bool has_keys = !is_among_layers();
    const std::vector<std::string> names = has_keys ? names_of_transforms(*node_) : names_of_layers(*node_);
    size_t best = names.size(), length = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i].size() <= length || !starts_with_name(rest_, names[i])) continue;
      best = i;
      length = names[i].size();
    }
    if (best == names.size()) {
      const std::string guess = did_you_mean(rest_.substr(0, rest_.find_first_of(".[")), names);
      error = here() + " has no item with that name" + (guess.empty() ? "" : "; " + guess);
      return;
    }
    node_ = &node_->items[best];
    section_ = nullptr;
    field_ = nullptr;
    if (has_keys) return;  // the name is also the key of the next step
    take(length);
    after_step(error);
  }

  /// `learning_rate: 0.1` stands for `learning_rate: {base: 0.1}`, `print: [fc]` for `print: {tensors: [fc]}`, to which
  /// more fields can be added.
  bool expand_shorthand() {
    if (shorthand_field() == nullptr) return false;
    YamlNode value = std::move(*node_);
    *node_ = YamlNode{};
    node_->kind = YamlNode::Kind::map;
    node_->pos = value.pos;
    node_->entries.push_back({field_->stands_for, value.pos, std::move(value)});
    return true;
  }

  /// `network.h.3.fc.units`, where h is a use of a module: only the module's own layers can be set.
  bool is_inside_use_of_module(std::string& error) const {
    const YamlNode* module = node_->find("module");
    if (!is_among_layers() || module == nullptr || !module->is_scalar()) return false;
    const std::vector<std::string> own = names_of(module_use_fields());
    for (const std::string& name : own)
      if (starts_with_name(rest_, name)) return false;
    std::string_view inner = rest_;
    const size_t digits = std::min(inner.find_first_not_of("0123456789"), inner.size());
    if (digits > 0 && digits < inner.size() && inner[digits] == '.') inner.remove_prefix(digits + 1);
    error = here() + " is a use of the module '" + module->text +
            "'; set its layers in the module, for all uses: " + "modules." + module->text + "." + std::string(inner) +
            "=";
    return true;
  }

  void step_key(std::string& error) {
    if (!node_->is_map() && !node_->is_null() && !expand_shorthand()) {
      error = here() + " is " + describe(*node_) + ", which has no fields; set it as a whole";
      return;
    }
    if (node_->is_null()) {
      *node_ = YamlNode{};
      node_->kind = YamlNode::Kind::map;
      node_->pos = kCommandLine;
    }
    if (is_inside_use_of_module(error)) return;
    YamlNode::Entry* best = nullptr;
    size_t length = 0;
    for (YamlNode::Entry& entry : node_->entries) {
      if (entry.key.size() > length && starts_with_name(rest_, entry.key)) {
        best = &entry;
        length = entry.key.size();
      }
    }
    if (!best && path_ == "vars.") {
      std::vector<std::string> names;
      for (const YamlNode::Entry& entry : node_->entries) names.push_back(entry.key);
      const std::string guess = did_you_mean(rest_, names);
      error = "the job has no var with that name" + (guess.empty() ? "" : "; " + guess);
      return;
    }
    if (!best) {
      const bool takes_all = path_ == "parallel.strategies." || path_ == "parallel.stage_config.";
      length = takes_all ? rest_.size() : std::min(rest_.find_first_of(".["), rest_.size());
      if (length == 0) {
        error = "contains an empty name";
        return;
      }
      node_->entries.push_back({std::string(rest_.substr(0, length)), kCommandLine, {}});
      best = &node_->entries.back();
      best->value.pos = kCommandLine;
    }
    node_ = &best->value;
    enter(best->key);
    take(length);
    after_step(error);
  }

  /// Takes the step to `key` in the field table too. Below a layer or an unknown field there is no table to follow.
  void enter(const std::string& key) {
    field_ = nullptr;
    if (section_ != nullptr)
      for (const Field& field : section_->fields)
        if (field.name == key) field_ = &field;
    section_ = field_ != nullptr ? field_->section : nullptr;
  }

  void after_step(std::string& error) {
    if (rest_.empty() || rest_.front() == '[') return;
    if (rest_.front() != '.' || rest_.size() == 1)
      error = "ends in '" + std::string(rest_) + "'";
    else
      take(1);
  }

  YamlNode* node_;
  std::string_view rest_;
  std::string path_;              ///< the path walked so far
  const Section* section_;        ///< section of node_; null: none
  const Field* field_ = nullptr;  ///< field whose value is node_; null: none
};

}  // namespace

void apply_override(YamlNode& root, const std::string& text, Problems& problems) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) {
    problems.add(kCommandLine, "", "'" + text + "' is not an override", "write field=value, e.g. parallel.stages=2");
    return;
  }
  const std::string path = text.substr(0, equals);
  YamlNode value;
  try {
    value = read_yaml(text.substr(equals + 1), "command line");
  } catch (const SpecError& e) {
    problems.add(kCommandLine, path, "the value of '" + text + "' cannot be read: " + e.diagnostics()[0].message);
    return;
  }
  if (const std::string key = key_that_wants_a_space(value); !key.empty()) {
    problems.add(kCommandLine, path, "'" + key + "' has no value",
                 "write '" + key.substr(0, key.find(':')) + ": " + key.substr(key.find(':') + 1) + "', with a space");
    return;
  }
  if (has_empty_value(value)) {
    problems.add(kCommandLine, path, "'" + text + "' has an empty value",
                 path.starts_with("env.") ? "for empty text, use quotes that the shell passes on: \"" + path + "=''\""
                                          : "is a shell variable unset? the default is " + path + "=null");
    return;
  }
  forget_positions(value);
  std::string error;
  if (YamlNode* target = Walk(root, path).find(error))
    *target = std::move(value);
  else
    problems.add(kCommandLine, "", "'" + text + "': " + error);
}

}  // namespace trainctl
