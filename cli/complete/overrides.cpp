// Completes fields of a job file from the parser's table and the names in the file.
#include "engine/spec/overrides.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "cli/complete/complete.h"
#include "engine/base/error.h"
#include "engine/spec/fields.h"
#include "engine/spec/network.h"
#include "engine/spec/parse.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {
namespace {

using OverrideWords = std::vector<std::string>;

/// The readable part of a job, which may be invalid while the user is writing it.
struct Draft {
  std::optional<YamlNode> tree;
  std::optional<JobSpec> job;
};

Draft read_draft(const std::string& file, const OverrideWords& others) {
  Draft draft;
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error))
    return draft;  // a FIFO must not be read, and opening it may block
  try {
    const JobText text = read_job_text(file);
    draft.tree = read_yaml(text.text, text.name);
    Problems ignored;
    for (const std::string& other : others) apply_override(*draft.tree, other, ignored);
    if (draft.tree->find("plugins") == nullptr) draft.job = parse_job(text, others);  // completion runs no plugin
  } catch (const SpecError&) {
    // Fields that were read before the error are offered.
  }
  return draft;
}

const YamlNode* child(const YamlNode* node, const std::string& key) {
  return node != nullptr && node->is_map() ? node->find(key) : nullptr;
}

std::string text_of(const YamlNode* node) { return node != nullptr && node->is_scalar() ? node->text : ""; }

class Overrides {
 public:
  Overrides(std::string typed, Draft draft) : typed_(std::move(typed)), draft_(std::move(draft)) {}

  std::vector<Candidate> find() {
    add_section(job_section(), "", draft_.tree ? &*draft_.tree : nullptr);
    return std::move(found_);
  }

 private:
  bool belongs(const Field& field) const {
    if (!draft_.tree) return true;
    const YamlNode* command = child(&*draft_.tree, "command");
    return belongs_to(field, command != nullptr && !command->is_null() ? JobKind::command : JobKind::network);
  }

  /// The section's `type`; "" if it is not known, or there is none.
  std::string type_of(const Section& section, const YamlNode* node) const {
    if (section.fields.empty() || section.fields.front().name != "type" || !draft_.tree) return "";
    const YamlNode* type = child(node, "type");
    return type != nullptr ? text_of(type) : default_text(section.fields.front(), &section);
  }

  void add_section(const Section& section, const std::string& path, const YamlNode* node) {
    const std::string type = type_of(section, node);
    for (const Field& field : section.fields) {
      const bool for_type = field.only.empty() || type.empty() ||
                            std::find(field.only.begin(), field.only.end(), type) != field.only.end();
      if (belongs(field) && for_type) add_field(field, path + field.name, child(node, field.name));
    }
  }

  /// Adds the completions of a field: its name, or the names of what it contains.
  void add_field(const Field& field, const std::string& name, const YamlNode* node) {
    switch (field.kind) {
      case FieldKind::section:
        add_subsection(field, name, node);
        break;
      case FieldKind::strategy_map:
      case FieldKind::stage_map:
        for (const std::string& layer : unrolled_names()) found_.push_back({name + "." + layer + "=", field.doc});
        break;
      case FieldKind::values:
        if (node != nullptr && node->is_map())
          for (const YamlNode::Entry& entry : node->entries)
            found_.push_back({name + "." + entry.key + "=", "current value: " + text_of(&entry.value)});
        break;
      case FieldKind::variables:
        found_.push_back({name + ".", field.doc});
        if (node != nullptr && node->is_map())
          for (const YamlNode::Entry& entry : node->entries) found_.push_back({name + "." + entry.key + "=", ""});
        break;
      case FieldKind::layers:
        add_layers(name + ".", field.doc, node);
        break;
      case FieldKind::modules:
        if (node == nullptr || !node->is_map()) break;
        for (const YamlNode::Entry& entry : node->entries) {
          const std::string module = name + "." + entry.key + ".";
          if (const YamlNode* arguments = child(&entry.value, "args"); arguments != nullptr && arguments->is_map())
            for (const YamlNode::Entry& argument : arguments->entries)
              found_.push_back({module + "args." + argument.key + "=", "default of a module argument"});
          if (const YamlNode* layers = child(&entry.value, "layers"))
            add_layers(module + "layers.", field.doc, layers);
          else
            add_layers(module, field.doc, &entry.value);
        }
        break;
      default:
        add(name, field, values_of(field));
    }
  }

  OverrideWords values_of(const Field& field) const {
    const bool of_layers = field.kind == FieldKind::names || field.kind == FieldKind::patterns;
    return of_layers ? unrolled_names() : field.choices;
  }

  /// Completes `loss=mse` as well as `loss.type=mse`.
  void add_subsection(const Field& field, const std::string& name, const YamlNode* node) {
    for (const Field& one : field.section->fields)
      if (one.name == field.stands_for) add(name, field, values_of(one));
    YamlNode expanded;
    if (node != nullptr && node->is_scalar() && !field.stands_for.empty()) {
      expanded.kind = YamlNode::Kind::map;
      expanded.entries.push_back({field.stands_for, node->pos, *node});
      node = &expanded;
    }
    add_section(*field.section, name + ".", node);
  }

  OverrideWords unrolled_names() const {
    OverrideWords names;
    if (draft_.job)
      for (const LayerSpec& layer : draft_.job->network) names.push_back(layer.name);
    return names;
  }

  /// `network.` -> network.fc1., then network.fc1.units=.
  void add_layers(const std::string& path, const std::string& doc, const YamlNode* list) {
    if (list == nullptr || !list->is_list()) return;
    if (!typed_.starts_with(path)) {
      found_.push_back({path, doc});
      return;
    }
    const OverrideWords names = names_of_layers(*list);
    for (size_t i = 0; i < names.size(); ++i) {
      const YamlNode& item = list->items[i];
      const std::string key = path + names[i] + ".", type = text_of(child(&item, "type"));
      if (!typed_.starts_with(key)) {
        found_.push_back({key, type});
        continue;
      }
      const EntryType* layer = find_layer_type(type);
      const bool is_module = child(&item, "module") != nullptr;
      for (const Field& field : is_module ? module_use_fields() : common_layer_fields())
        add(key + field.name, field, field.choices);
      if (layer == nullptr || is_module) continue;
      for (const Field& field : layer->fields) add(key + field.name, field, field.choices);
    }
  }

  /// Adds the field, or its values once its name is complete.
  void add(const std::string& path, const Field& field, const OverrideWords& values) {
    const std::string key = path + "=";
    if (!typed_.starts_with(key)) {
      found_.push_back({key, field.doc});
      return;
    }
    for (const std::string& value : values) found_.push_back({key + value, ""});
    if (field.kind == FieldKind::flag)
      for (const char* value : {"true", "false"}) found_.push_back({key + value, ""});
  }

  const std::string typed_;
  const Draft draft_;
  std::vector<Candidate> found_;
};

}  // namespace

std::vector<Candidate> complete_override(const std::string& typed, const std::string& job,
                                         const OverrideWords& others) {
  return Overrides(typed, read_draft(job, others)).find();
}

}  // namespace trainctl
