// YAML lists of layers, as written: types, fields and names, but nothing that depends on another layer.
#include <algorithm>
#include <set>

#include "engine/base/text.h"
#include "engine/spec/foreign_names.h"
#include "engine/spec/network.h"
#include "engine/spec/read_fields.h"
#include "engine/spec/read_value.h"

namespace trainctl {
namespace {

constexpr size_t kMaxNameLength = 200;

bool is_name(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(),
                     [](char c) {
                       return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                              c == '-' || c == '.';
                     }) &&
         text.front() != '.' && text.back() != '.' && text.size() <= kMaxNameLength;
}

const std::vector<std::string> kReservedLayerNames = {"data", "label", "input", "loss"};

bool is_reserved(const std::string& name) {
  return std::find(kReservedLayerNames.begin(), kReservedLayerNames.end(), name) != kReservedLayerNames.end();
}

void check_name(const std::string& name, const SourcePos& pos, const std::string& path, Problems& problems) {
  if (!is_name(name))
    problems.add(pos, path, "'" + name + "' is not a valid name",
                 "a name consists of letters, digits, '_' and '-', with '.' only inside");
  else if (is_reserved(name))
    problems.add(pos, path, "the name '" + name + "' is reserved for the " + (name == "loss" ? "loss" : "input"),
                 "give the layer another name");
}

void read_inputs(const YamlNode& node, LayerEntry& entry, Problems& problems) {
  const std::string path = at_key(entry.path, "inputs");
  entry.inputs = read_texts(node, path, "the name of a layer", problems);
  for (size_t i = 0; i < entry.inputs.size(); ++i)
    entry.input_pos.push_back(node.is_list() && node.items.size() == entry.inputs.size() ? node.items[i].pos
                                                                                         : node.pos);
  if (node.is_list() && node.items.empty()) problems.add(node.pos, path, "must name at least one layer");
}

/// Fills in the names of a layer's outputs if it has several: the names in `outputs`, or without this field their
/// numbers.
void read_outputs(const YamlNode* node, LayerEntry& entry, Problems& problems) {
  const std::string path = at_key(entry.path, "outputs");
  const int count = output_count(*entry.type, entry.attrs);
  if (count > 1)
    for (int i = 0; i < count; ++i) entry.outputs.push_back(std::to_string(i));
  if (node == nullptr || node->is_null()) return;
  const std::vector<std::string> names = read_texts(*node, path, "the name of an output", problems);
  if (problems.touch(path) || problems.touch(entry.path)) return;
  if (names.size() != static_cast<size_t>(count) || count == 1) {
    const std::string has =
        count == 1 ? " has one output, which is named after the layer" : " has " + std::to_string(count) + " outputs";
    problems.add(node->pos, path, entry.type->name + has + ", but 'outputs' lists " + std::to_string(names.size()));
    return;
  }
  std::set<std::string> taken;
  for (size_t i = 0; i < names.size(); ++i) {
    const SourcePos& pos = node->is_list() ? node->items[i].pos : node->pos;
    const bool number = names[i].find_first_not_of("0123456789") == std::string::npos;
    if (!is_name(names[i]) || names[i].find('.') != std::string::npos || (number && names[i] != std::to_string(i)))
      problems.add(pos, at_index(path, i), "'" + names[i] + "' is not a valid name of output " + std::to_string(i),
                   "a name consists of letters, digits, '_' and '-', but not only of digits");
    else if (!taken.insert(names[i]).second)
      problems.add(pos, at_index(path, i), "the name '" + names[i] + "' is used twice");
  }
  if (!problems.touch(path)) entry.outputs = names;
}

/// Returns the fields that a layer of this type may have. Includes `outputs` if the layer gives it, even if its type
/// has one output: read_outputs reports this error, so it must not be reported as an unknown field.
std::vector<std::string> fields_of(const EntryType& type, const YamlNode& node) {
  std::vector<std::string> names = names_of(common_layer_fields());
  if (type.num_outputs == nullptr && node.find("outputs") == nullptr) std::erase(names, "outputs");
  for (const Field& field : type.fields) {
    const std::string mapping = mapping_of(field), key = mapping.empty() ? field.name : mapping;
    if (std::find(names.begin(), names.end(), key) == names.end()) names.push_back(key);
  }
  return names;
}

/// Reads a layer: its type, its own fields and its outputs.
void read_layer(const YamlNode& node, LayerEntry& entry, Problems& problems) {
  const YamlNode* type = node.find("type");
  if (!type || type->is_null()) {
    problems.add(type ? type->pos : node.pos, entry.path, "a layer needs 'type'",
                 "one of " + join(names_of(layer_types())));
    return;
  }
  entry.pos = type->pos;
  entry.type = type->is_scalar() ? find_layer_type(type->text) : nullptr;
  if (!entry.type) {
    std::string hint = type->is_scalar() ? foreign_hint(NameKind::layer, type->text) : "";
    if (hint.empty() && type->is_scalar())
      if (const std::string same = same_name(type->text, names_of(layer_types())); !same.empty())
        hint = "write {type: " + same + "}";
    if (hint.empty() && type->is_scalar()) hint = did_you_mean(type->text, names_of(layer_types()));
    if (hint.empty()) hint = "one of " + join(names_of(layer_types()));
    problems.add(type->pos, at_key(entry.path, "type"), "unknown layer type " + describe(*type), hint);
    return;
  }
  if (entry.left_out) return;
  refuse_unknown_keys(node, fields_of(*entry.type, node), entry.type->name, entry.path, problems);
  entry.attrs = read_attrs(node, entry.type->fields, entry.type->name, entry.path, problems);
  read_outputs(node.find("outputs"), entry, problems);
  if (const YamlNode* share = node.find("share")) entry.share_pos = share->pos;
}

/// True if the layer's `if` is false.
bool is_left_out(const YamlNode& node, const std::string& path, Problems& problems) {
  const YamlNode* condition = node.find("if");
  if (condition == nullptr || condition->is_null()) return false;
  const std::optional<Value> value = read_value(*condition, condition_field(), at_key(path, "if"), problems);
  return value && !std::get<bool>(*value);
}

void read_with(const YamlNode& node, LayerEntry& entry, Problems& problems) {
  const std::string path = at_key(entry.path, "with");
  if (!node.is_map())
    problems.add(node.pos, path, "must be a mapping of arguments to values, not " + describe(node), "e.g. {width: 64}");
  else
    entry.with = node;
}

void read_index(const YamlNode& node, LayerEntry& entry, Problems& problems) {
  const std::string path = at_key(entry.path, "index");
  if (!node.is_scalar() || !is_var_name(node.text))
    problems.add(node.pos, path, "must be a name for the number of the copy, not " + describe(node), "e.g. index: i");
  else if (entry.repeat == 0)
    problems.add(node.pos, path, "`index` counts the copies made by `repeat`, which is missing here",
                 "add repeat: 2 or more");
  else
    entry.index = node.text;
}

/// Reads the use of a module: the module, the number of copies, and the arguments.
void read_module_use(const YamlNode& node, LayerEntry& entry, Problems& problems) {
  refuse_unknown_keys(node, names_of(module_use_fields()), "the use of a module", entry.path, problems);
  for (const Field& field : module_use_fields()) {
    const YamlNode* value = node.find(field.name);
    if (!value || value->is_null() || field.name == "name" || field.name == "inputs" || field.name == "if") continue;
    if (field.kind == FieldKind::values) {
      read_with(*value, entry, problems);
      continue;
    }
    if (field.name == "index") {
      read_index(*value, entry, problems);
      continue;
    }
    const std::optional<Value> read = read_value(*value, field, at_key(entry.path, field.name), problems);
    if (!read) continue;
    if (field.name == "repeat")
      entry.repeat = std::get<int64_t>(*read);
    else
      entry.module = std::get<std::string>(*read);
  }
  entry.pos = entry.module_pos = node.find("module")->pos;
}

LayerEntry read_entry(const YamlNode& node, const std::string& path, Problems& problems) {
  LayerEntry entry;
  entry.path = path;
  entry.pos = node.pos;
  if (!node.is_map()) {
    problems.add(node.pos, path, "must be a layer, not " + describe(node),
                 node.is_scalar() && find_layer_type(node.text) != nullptr ? "write {type: " + node.text + "}"
                                                                           : "e.g. {type: dense, units: 10}");
    return entry;
  }
  entry.left_out = is_left_out(node, path, problems);
  const YamlNode* module = node.find("module");
  if (module && !module->is_null())
    read_module_use(node, entry, problems);
  else
    read_layer(node, entry, problems);
  if (const YamlNode* name = node.find("name"); name && !name->is_null()) {
    if (name->is_scalar())
      check_name(entry.name = name->text, name->pos, at_key(path, "name"), problems);
    else
      problems.add(name->pos, at_key(path, "name"), "must be text, not " + describe(*name));
  }
  if (const YamlNode* inputs = node.find("inputs"); inputs && !inputs->is_null()) read_inputs(*inputs, entry, problems);
  return entry;
}

void refuse_equal_names(const YamlNode& node, const LayerList& layers, Problems& problems) {
  std::set<std::string> taken;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerEntry& layer = layers[i];
    if (layer.name.empty() || taken.insert(layer.name).second) continue;
    const YamlNode* name = node.items[i].find("name");
    const auto first =
        std::find_if(layers.begin(), layers.end(), [&](const LayerEntry& l) { return l.name == layer.name; });
    const SourcePos& other = first->pos;
    problems.add(name->pos, at_key(layer.path, "name"), "the name '" + layer.name + "' is used twice",
                 other.known() ? "it is first used in line " + std::to_string(other.line) : "");
  }
}

/// Names the items that have no name after their type or module (`bases`): relu, relu_1, …
void fill_in_names(std::vector<std::string>& names, const std::vector<std::string>& bases) {
  std::set<std::string> taken(names.begin(), names.end());
  std::map<std::string, int> counters;  // so that ten thousand relus do not each try ten thousand names
  for (size_t i = 0; i < names.size(); ++i) {
    if (!names[i].empty()) continue;
    const std::string base = bases[i].empty() ? "layer" : bases[i];
    int& n = counters[base];
    do {
      names[i] = n == 0 ? base : base + "_" + std::to_string(n);
      ++n;
    } while (!taken.insert(names[i]).second);
  }
}

void name_layers(LayerList& layers) {
  std::vector<std::string> names, bases;
  for (const LayerEntry& layer : layers) {
    names.push_back(layer.name);
    bases.push_back(layer.type ? layer.type->name : layer.module);
  }
  fill_in_names(names, bases);
  for (size_t i = 0; i < layers.size(); ++i) layers[i].name = names[i];
}

}  // namespace

std::string layer_name_pattern() {
  return "^(?!(" + join(kReservedLayerNames, "|") + ")$)[A-Za-z0-9_-]([A-Za-z0-9_.-]{0," +
         std::to_string(kMaxNameLength - 2) + "}[A-Za-z0-9_-])?$";
}

std::string sample_field_pattern() { return "^(?!(input|loss|grad)$)[A-Za-z0-9_-]{1,100}$"; }

bool is_sample_field_name(const std::string& name) {
  return is_name(name) && name.size() <= 100 && name.find('.') == std::string::npos && name != "input" &&
         name != "loss" && name != "grad";
}

std::vector<std::string> names_of_layers(const YamlNode& list) {
  std::vector<std::string> names, bases;
  for (const YamlNode& item : list.items) {
    const auto text = [&](const char* key) {
      const YamlNode* value = item.find(key);
      return value != nullptr && value->is_scalar() ? value->text : "";
    };
    names.push_back(text("name"));
    bases.push_back(!text("module").empty() ? text("module") : text("type"));
  }
  fill_in_names(names, bases);
  return names;
}

LayerList read_layers(const YamlNode& node, const std::string& path, Problems& problems) {
  LayerList layers;
  if (!node.is_list()) {
    problems.add(node.pos, path, "must be a list of layers, not " + describe(node),
                 node.is_scalar()
                     ? "e.g. - {type: dense, units: 10}; trainctl init lists complete jobs, such as resnet50"
                     : "e.g. - {type: dense, units: 10}");
    return layers;
  }
  if (node.items.empty()) problems.add(node.pos, path, "must have at least one layer");
  if (node.items.size() > kMaxLayers) {
    problems.add(
        node.pos, path,
        "has " + std::to_string(node.items.size()) + " layers; " + std::to_string(kMaxLayers) + " is the limit");
    return layers;
  }
  for (size_t i = 0; i < node.items.size(); ++i)
    layers.push_back(read_entry(node.items[i], at_index(path, i), problems));
  refuse_equal_names(node, layers, problems);
  name_layers(layers);
  return layers;
}

namespace {

/// The fields of a module that is written as a mapping.
constexpr const char *kArguments = "args", *kInputs = "inputs", *kLayers = "layers";

void read_arguments(const YamlNode& node, const std::string& path, Module& module, Problems& problems) {
  if (!node.is_map()) {
    problems.add(node.pos, path, "must be a mapping of arguments to their defaults, not " + describe(node),
                 "e.g. {width: , stride: 1}, where each use must set width");
    return;
  }
  for (const YamlNode::Entry& entry : node.entries) {
    const std::string where = at_key(path, entry.key);
    if (!is_var_name(entry.key))
      problems.add(entry.key_pos, where, "'" + entry.key + "' is not a valid argument name",
                   "a name consists of letters, digits and '_', does not start with a digit, and is not and, or, not");
    else if (!entry.value.is_null() && !entry.value.is_scalar())
      problems.add(entry.value.pos, where,
                   "a default must be a number, text, true or false, not " + describe(entry.value));
    else
      module.arguments.push_back({entry.key, entry.value});
  }
}

void read_module_inputs(const YamlNode& node, const std::string& path, Module& module, Problems& problems) {
  module.inputs = read_texts(node, path, "the name of an input", problems);
  std::set<std::string> taken;
  for (size_t i = 0; i < module.inputs.size() && !problems.touch(path); ++i) {
    const SourcePos& pos = node.is_list() ? node.items[i].pos : node.pos;
    const std::string& name = module.inputs[i];
    if (name != "input") check_name(name, pos, at_index(path, i), problems);
    if (!taken.insert(name).second) problems.add(pos, at_index(path, i), "the name '" + name + "' is used twice");
  }
}

Module read_module(const YamlNode& node, const std::string& path, Expander& expander, Problems& problems) {
  Module module;
  module.path = path;
  module.body = node;
  if (node.is_map()) {
    refuse_unknown_keys(node, {kArguments, kInputs, kLayers}, "a module", path, problems);
    if (const YamlNode* arguments = node.find(kArguments); arguments && !arguments->is_null())
      read_arguments(*arguments, at_key(path, kArguments), module, problems);
    if (const YamlNode* inputs = node.find(kInputs); inputs && !inputs->is_null())
      read_module_inputs(*inputs, at_key(path, kInputs), module, problems);
    const YamlNode* layers = node.find(kLayers);
    if (layers == nullptr || layers->is_null()) {
      problems.add(node.pos, path, "a module needs 'layers'", "layers: a list of layers");
      module.body = YamlNode{};
      module.body.kind = YamlNode::Kind::list;
      return module;
    }
    module.path = at_key(path, kLayers);
    module.body = *layers;
  }
  module.has_expressions = has_expressions(module.body);
  if (module.has_expressions)
    expander.check_syntax(module.body, module.path);
  else
    module.layers = read_layers(module.body, module.path, problems);
  return module;
}

}  // namespace

Modules read_modules(const YamlNode& node, const std::string& path, Expander& expander, Problems& problems) {
  Modules modules;
  if (!node.is_map()) {
    problems.add(node.pos, path, "must be a mapping of module names to lists of layers, not " + describe(node));
    return modules;
  }
  for (const YamlNode::Entry& entry : node.entries) {
    check_name(entry.key, entry.key_pos, at_key(path, entry.key), problems);
    modules.emplace(entry.key, read_module(entry.value, at_key(path, entry.key), expander, problems));
  }
  return modules;
}

}  // namespace trainctl
