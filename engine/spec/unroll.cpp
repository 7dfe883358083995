// Expands modules and repeats into one flat list of layers with full names and inputs.
//
//   modules: {block: [{name: fc, type: dense, units: 8}, {type: relu}]}
//   network: [{module: block, name: h, repeat: 2}]      ->   h.0.fc  h.0.relu  h.1.fc  h.1.relu
// The expressions of a module are computed for each use, and with an index for each copy.
//
// From outside, "h" is the output of the last copy, "h.0" that of the first, "h.0.fc" any layer of it.
#include <algorithm>
#include <set>

#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/spec/network.h"
#include "engine/spec/read_fields.h"
#include "engine/spec/read_value.h"

namespace trainctl {
namespace {

constexpr size_t kMaxModuleDepth = 8;
/// The largest number of values in all copies of modules with expressions, together.
constexpr size_t kMaxCopiedValues = 2'000'000;

size_t count_values(const YamlNode& node) {
  size_t count = 1 + node.text.size() / 64;
  for (const YamlNode& item : node.items) count += count_values(item);
  for (const YamlNode::Entry& entry : node.entries) count += 1 + count_values(entry.value);
  return count;
}

/// The local names of one list of layers, each with the full name of the output that it means.
struct Scope {
  const LayerList* layers = nullptr;
  std::string prefix;                         ///< "h.0." or ""
  std::string input;                          ///< input of the first layer: "data", or the module's first input
  std::map<std::string, std::string> inputs;  ///< full names of the module's inputs, by name
  const Names* names = nullptr;               ///< names that its expressions may use
  std::map<std::string, std::string> outputs;
  std::map<std::string, std::vector<std::string>> several;  ///< same as Network::several
};

class Unroller {
 public:
  Unroller(const Modules& modules, const std::vector<std::string>& fields, const Names& vars, Expander& expander,
           Problems& problems)
      : modules_(modules), fields_(fields), vars_(vars), expander_(expander), problems_(problems) {}

  Network run(const LayerList& layers) {
    Scope top;
    top.layers = &layers;
    top.input = "data";
    top.names = &vars_;
    top_ = &top;
    expand(top, 0);
    refuse_names_inside_names();
    if (!layers.empty()) network_.last = layers.back().name;
    for (const auto& [name, output] : top.outputs) network_.print_names.push_back(name);
    network_.outputs = std::move(top.outputs);
    network_.several = std::move(top.several);
    return std::move(network_);
  }

 private:
  /// Adds all layers of a list to the network: resolves their inputs, and expands uses of modules recursively. `depth`
  /// is the number of enclosing modules.
  void expand(Scope& scope, size_t depth) {
    std::string before = scope.input;
    const LayerEntry* entry_before = nullptr;
    for (size_t i = 0; i < scope.layers->size(); ++i) {
      const LayerEntry& entry = (*scope.layers)[i];
      if (network_.layers.size() >= kMaxLayers || ++entries_ > 4 * kMaxLayers) return refuse_size(entry);
      if (entry.inputs.empty() && entry_before != nullptr) refuse_several(scope, *entry_before, entry);
      const std::vector<std::string> inputs = resolve_inputs(scope, i, before);
      if (entry.left_out)
        scope.outputs[entry.name] = inputs.front();
      else if (entry.module.empty())
        add_layer(scope, entry, inputs);
      else
        add_module(scope, entry, inputs, depth);
      const auto output = scope.outputs.find(entry.name);
      if (output != scope.outputs.end()) before = output->second;
      entry_before = &entry;
    }
  }

  /// Reports an error if a layer without `inputs` follows a layer with several outputs, so that it is unclear which
  /// output it reads.
  void refuse_several(const Scope& scope, const LayerEntry& before, const LayerEntry& entry) {
    const auto several = scope.several.find(before.name);
    if (several == scope.several.end()) return;
    problems_.add(entry.pos, at_key(entry.path, "inputs"), has_several(before.name, several->second),
                  "name one or more: inputs: [" + join(several->second) + "]");
  }

  static std::string has_several(const std::string& name, const std::vector<std::string>& outputs) {
    return "'" + name + "' has " + std::to_string(outputs.size()) + " outputs";
  }

  std::vector<std::string> resolve_inputs(const Scope& scope, size_t index, const std::string& before) {
    const LayerEntry& entry = (*scope.layers)[index];
    if (entry.inputs.empty()) return {before};
    std::vector<std::string> full;
    for (size_t i = 0; i < entry.inputs.size(); ++i) {
      const std::string path = at_index(at_key(entry.path, "inputs"), i);
      full.push_back(resolve(scope, entry.inputs[i], index, entry.input_pos[i], path));
    }
    return full;
  }

  std::string resolve(const Scope& scope, const std::string& name, size_t index, const SourcePos& pos,
                      const std::string& path) {
    if (name == "data" || name == "label") return name;
    if (const auto known = scope.inputs.find(name); known != scope.inputs.end()) return known->second;
    if (const auto known = scope.outputs.find(name); known != scope.outputs.end()) return known->second;
    if (const auto several = scope.several.find(name); several != scope.several.end()) {
      problems_.add(pos, path, has_several(name, several->second), "name one: " + join(several->second));
      return name;
    }
    if (std::find(fields_.begin(), fields_.end(), name) != fields_.end()) return name;
    const auto later = std::find_if(scope.layers->begin() + static_cast<std::ptrdiff_t>(index), scope.layers->end(),
                                    [&](const LayerEntry& l) { return l.name == name; });
    if (later == scope.layers->begin() + static_cast<std::ptrdiff_t>(index)) {
      problems_.add(pos, path, "layer '" + name + "' cannot be its own input");
    } else if (later != scope.layers->end()) {
      problems_.add(pos, path,
                    "layer '" + name + "' is defined later" + in_line(later->pos) +
                        "; an input must be defined "
                        "before the layer");
    } else if (network_.complete && !problems_.full()) {
      problems_.add(pos, path, "there is no earlier layer '" + name + "'", suggest(scope, name));
    }
    return name;
  }

  static std::string in_line(const SourcePos& pos) {
    return pos.known() ? " (line " + std::to_string(pos.line) + ")" : "";
  }

  std::string suggest(const Scope& scope, const std::string& name) const {
    std::vector<std::string> names = {"data", "label"};
    for (const std::string& field : fields_)
      if (std::find(names.begin(), names.end(), field) == names.end()) names.push_back(field);
    for (const auto& [input, output] : scope.inputs) names.push_back(input);
    for (const auto& [local, output] : scope.outputs) names.push_back(local);
    const std::string near = did_you_mean(name, names);
    if (!near.empty()) return near;
    constexpr size_t kMostNames = 8;
    const bool is_long = names.size() > kMostNames;
    if (is_long) names.erase(names.begin(), names.end() - static_cast<std::ptrdiff_t>(kMostNames));
    return "inputs can be " + std::string(is_long ? "…, " : "") + join(names);
  }

  void add_layer(Scope& scope, const LayerEntry& entry, const std::vector<std::string>& inputs) {
    const std::string full = scope.prefix + entry.name;
    if (entry.outputs.empty()) scope.outputs[entry.name] = full;
    for (const std::string& output : entry.outputs) add_output(scope, entry.name, output, full + "." + output);
    if (!entry.type) return;
    check_input_count(entry);
    LayerSpec layer{full, entry.type->name, inputs, entry.attrs, entry.path, entry.outputs, problems_.note()};
    if (entry.attrs.has("share")) resolve_share(scope, entry, layer);
    index_[full] = network_.layers.size();
    pos_.push_back(entry.pos);
    network_.layers.push_back(std::move(layer));
  }

  static void add_output(Scope& scope, const std::string& name, const std::string& output, const std::string& full) {
    scope.outputs[name + "." + output] = full;
    scope.several[name].push_back(name + "." + output);
  }

  void check_input_count(const LayerEntry& entry) {
    const int given = entry.inputs.empty() ? 1 : static_cast<int>(entry.inputs.size());
    const std::string& weight_field = entry.type->weight_field;
    if (problems_.touch(at_key(entry.path, "inputs"))) return;
    if (!weight_field.empty() && problems_.touch(at_key(entry.path, weight_field))) return;
    const std::string fault = input_fault(*entry.type, entry.attrs, given);
    if (fault.empty()) return;
    const SourcePos pos = entry.input_pos.empty() ? entry.pos : entry.input_pos.back();
    const bool several = input_count(*entry.type, entry.attrs).least > 1;
    problems_.add(pos, at_key(entry.path, "inputs"), fault, several ? "name them: inputs: [a, b]" : "");
  }

  /// Layers may share a weight if their weights have the same layout: a dense layer's is [units, features], an
  /// embedding's table [vocab, units], so language models can tie them.
  void resolve_share(const Scope& scope, const LayerEntry& entry, LayerSpec& layer) {
    const std::string name = layer.attrs.text("share"), path = at_key(entry.path, "share");
    std::string full;
    for (const Scope* s : {&scope, static_cast<const Scope*>(top_)}) {
      const auto known = s->outputs.find(name);
      if (known == s->outputs.end() || (s == &scope && known->second == layer.name)) continue;
      full = known->second;
      break;
    }
    const auto at = index_.find(full);
    if (at == index_.end()) {
      if (!network_.complete || !full.empty() || problems_.full()) return;  // the other layer is wrong itself
      if (name == entry.name)
        problems_.add(entry.share_pos, path, "layer '" + name + "' cannot share its own weight", "name another layer");
      else
        problems_.add(entry.share_pos, path, "there is no earlier layer '" + name + "'",
                      suggest_owner(scope, layer, name));
      return;
    }
    const LayerSpec& other = network_.layers[at->second];
    if (!find_layer_type(other.type)->has_field("share"))
      problems_.add(entry.share_pos, path,
                    "'" + name + "' is a " + other.type + " layer, which has no weight to share with " + layer.type);
    else if (other.attrs.has("share"))
      problems_.add(entry.share_pos, path,
                    "'" + name + "' itself shares the weight of '" + other.attrs.text("share") + "'", "share that one");
    layer.attrs.set("share", full);
  }

  /// Suggests a name similar to `name`, among layers that own a weight, excluding the layer itself.
  std::string suggest_owner(const Scope& scope, const LayerSpec& layer, const std::string& name) const {
    std::vector<std::string> names;
    for (const Scope* s : {&scope, static_cast<const Scope*>(top_)}) {
      for (const auto& [local, output] : s->outputs) {
        const auto at = index_.find(output);
        if (at == index_.end() || output == layer.name) continue;
        const LayerSpec& other = network_.layers[at->second];
        if (find_layer_type(other.type)->has_field("share") && !other.attrs.has("share")) names.push_back(local);
      }
    }
    return did_you_mean(name, names);
  }

  void add_module(Scope& scope, const LayerEntry& entry, const std::vector<std::string>& inputs, size_t depth) {
    const auto module = modules_.find(entry.module);
    if (module == modules_.end()) {
      std::vector<std::string> names;
      for (const auto& [name, layers] : modules_)
        if (std::find(open_.begin(), open_.end(), name) == open_.end()) names.push_back(name);
      std::string hint = did_you_mean(entry.module, names);
      if (hint.empty()) hint = names.empty() ? "define it under modules:" : "modules are " + join(names);
      fail_module(scope, entry, "there is no module '" + entry.module + "'", hint);
      return;
    }
    if (std::find(open_.begin(), open_.end(), entry.module) != open_.end() || depth >= kMaxModuleDepth) {
      fail_module(scope, entry, "module '" + entry.module + "' uses itself, or modules are nested too deeply", "");
      return;
    }
    const Module& used = module->second;
    const size_t wanted = std::max<size_t>(1, used.inputs.size());
    if (inputs.size() != wanted) {
      const std::string names = used.inputs.empty() ? "" : ": " + join(used.inputs);
      problems_.add(entry.input_pos.empty() ? entry.module_pos : entry.input_pos.back(), at_key(entry.path, "inputs"),
                    (used.inputs.empty() ? "a module" : "module '" + entry.module + "'") + " takes " +
                        std::to_string(wanted) + (wanted == 1 ? " input" : " inputs") + names + ", not " +
                        std::to_string(inputs.size()),
                    wanted > 1 && entry.input_pos.empty() ? "name them: inputs: [a, b]" : "");
      if (inputs.size() < wanted) return fail(scope, entry);
    }
    if (used.body.items.empty()) {
      network_.complete = false;
      return;
    }
    open_.push_back(entry.module);
    add_copies(scope, entry, used, inputs, depth);
    open_.pop_back();
  }

  void add_copies(Scope& scope, const LayerEntry& entry, const Module& module, const std::vector<std::string>& inputs,
                  size_t depth) {
    std::string before = inputs.front();
    std::optional<Names> names;
    LayerList own;  // the module's layers, with expressions computed for these names
    for (int64_t i = 0; i < std::max<int64_t>(1, entry.repeat) && !too_large_; ++i) {
      if (!names || !entry.index.empty()) {
        names = arguments(scope, entry, module, i);
        if (!names) return fail(scope, entry);
        own.clear();
      }
      const Problems::Note note(problems_, use_of(entry, module, *names));
      if (module.has_expressions && own.empty() && !read_body(entry, module, *names, own)) return fail(scope, entry);
      const std::string local = entry.repeat > 0 ? entry.name + "." + std::to_string(i) : entry.name;
      Scope inner;
      inner.layers = module.has_expressions ? &own : &module.layers;
      inner.prefix = scope.prefix + local + ".";
      inner.input = before;
      inner.names = &*names;
      inner.inputs[module.inputs.empty() ? "input" : module.inputs.front()] = before;
      for (size_t k = 1; k < std::min(module.inputs.size(), inputs.size()); ++k)
        inner.inputs[module.inputs[k]] = inputs[k];
      refuse_input_names(inner);
      expand(inner, depth + 1);
      for (const auto& [name, output] : inner.outputs) scope.outputs[local + "." + name] = output;
      for (const auto& [name, outputs] : inner.several)
        for (const std::string& output : outputs) scope.several[local + "." + name].push_back(local + "." + output);
      const LayerEntry& last = inner.layers->back();
      if (const auto several = inner.several.find(last.name); several != inner.several.end()) {
        pass_several_on(scope, entry, inner, last.name, several->second);
        break;
      }
      const auto output = inner.outputs.find(last.name);
      if (output == inner.outputs.end()) break;
      before = scope.outputs[local] = scope.outputs[entry.name] = output->second;
    }
  }

  /// A layer cannot have the name of an input of its module.
  void refuse_input_names(const Scope& inner) {
    for (const LayerEntry& layer : *inner.layers)
      if (inner.inputs.contains(layer.name) && layer.name != "input")
        problems_.add(layer.pos, layer.path, "'" + layer.name + "' is also an input of its module", "rename the layer");
  }

  /// The names that the module's expressions may use: vars, arguments and the index. Empty: problems were added.
  std::optional<Names> arguments(const Scope& scope, const LayerEntry& entry, const Module& module, int64_t copy) {
    Names outside = *scope.names, names = vars_;
    if (!entry.index.empty()) outside.insert_or_assign(entry.index, copy);
    const std::string path = at_key(entry.path, "with");
    bool good = refuse_unknown_arguments(entry, module, path);
    for (const Module::Argument& argument : module.arguments) {
      const YamlNode* given = entry.with.find(argument.name);
      std::optional<Constant> value;
      if (given != nullptr && !given->is_null()) {
        value = expander_.constant(*given, outside, at_key(path, argument.name));
        good = good && value && fits(entry, argument, *value, *given, at_key(path, argument.name));
      } else if (!argument.fallback.is_null()) {
        if (!good) continue;  // it may use an argument that has an error of its own
        const Problems::Note note(problems_, use_of(entry, module, {}));
        value = expander_.constant(argument.fallback, names,
                                   module.path.substr(0, module.path.rfind('.')) + ".args." + argument.name);
      } else {
        problems_.add(entry.module_pos, entry.path, "module '" + entry.module + "' needs '" + argument.name + "'",
                      "with: {" + argument.name + ": ...}");
      }
      good = good && value;
      if (value) names.insert_or_assign(argument.name, *value);
    }
    if (!entry.index.empty()) names.insert_or_assign(entry.index, copy);
    return good ? std::optional(names) : std::nullopt;
  }

  bool refuse_unknown_arguments(const LayerEntry& entry, const Module& module, const std::string& path) {
    std::vector<std::string> known;
    for (const Module::Argument& argument : module.arguments) known.push_back(argument.name);
    bool good = true;
    for (const YamlNode::Entry& given : entry.with.entries) {
      if (std::find(known.begin(), known.end(), given.key) != known.end()) continue;
      good = false;
      std::string hint = did_you_mean(given.key, known);
      if (hint.empty()) hint = known.empty() ? "it takes no arguments" : "its arguments are " + join(known);
      problems_.add(given.key_pos, at_key(path, given.key),
                    "module '" + entry.module + "' has no argument '" + given.key + "'", hint);
    }
    if (const std::string& index = entry.index; std::find(known.begin(), known.end(), index) != known.end()) {
      good = false;
      problems_.add(entry.module_pos, at_key(entry.path, "index"),
                    "module '" + entry.module + "' has an argument '" + index + "'; choose another name for the index");
    }
    return good;
  }

  /// Checks that the value of an argument has the same kind (number, text or flag) as its default.
  bool fits(const LayerEntry& entry, const Module::Argument& argument, const Constant& value, const YamlNode& given,
            const std::string& path) {
    if (argument.fallback.is_null() || has_expressions(argument.fallback)) return true;
    const Constant fallback =
        argument.fallback.quoted ? Constant(argument.fallback.text) : constant_of(argument.fallback.text);
    if (kind_of(fallback) == kind_of(value)) return true;
    problems_.add(given.pos, path,
                  "argument '" + argument.name + "' of module '" + entry.module + "' must be " + kind_of(fallback) +
                      ", not '" + to_text(value) + "'",
                  "its default is " + to_text(fallback));
    return false;
  }

  bool read_body(const LayerEntry& entry, const Module& module, const Names& names, LayerList& layers) {
    copied_values_ += count_values(module.body);
    if (copied_values_ > kMaxCopiedValues) {
      refuse_size(entry);
      return false;
    }
    YamlNode body = module.body;
    if (!expander_.expand_layers(body, names, module.path)) return false;
    layers = read_layers(body, module.path, problems_);
    return !layers.empty();
  }

  /// Returns the text that ends errors inside of a module with arguments. `names`: the values of the arguments.
  static std::string use_of(const LayerEntry& entry, const Module& module, const Names& names) {
    if (!module.has_expressions) return "";
    std::string values;
    const auto add = [&](const std::string& name) {
      if (const auto value = names.find(name); value != names.end())
        values += (values.empty() ? " with " : ", ") + name + ": " + shortened(to_text(value->second));
    };
    for (const Module::Argument& argument : module.arguments) add(argument.name);
    if (!entry.index.empty()) add(entry.index);
    return "module '" + entry.module + "' is used in " +
           (entry.module_pos.line > 0 ? "line " + std::to_string(entry.module_pos.line) : entry.module_pos.file) +
           values;
  }

  /// Marks a use of a module as failed. Its layers are not known, so later names that are not found are not reported.
  void fail(Scope& scope, const LayerEntry& entry) {
    scope.outputs[entry.name] = scope.prefix + entry.name;
    network_.complete = false;
  }

  /// A module whose last layer has the outputs q, k and v has them too: "qkv.q", where "qkv" is its use.
  void pass_several_on(Scope& scope, const LayerEntry& entry, const Scope& inner, const std::string& last,
                       const std::vector<std::string>& outputs) {
    if (entry.repeat > 1) {
      problems_.add(entry.pos, at_key(entry.path, "repeat"),
                    "module '" + entry.module + "' has " + std::to_string(outputs.size()) +
                        " outputs, so a copy cannot read the previous copy",
                    "its last layer must have one output");
      network_.complete = false;
      return;
    }
    for (const std::string& output : outputs)
      add_output(scope, entry.name, output.substr(last.size() + 1), inner.outputs.at(output));
  }

  void refuse_size(const LayerEntry& entry) {
    problems_.add(entry.pos, entry.path,
                  "the network has more than " + std::to_string(kMaxLayers) + " layers after its modules are expanded",
                  "reduce `repeat`");
    network_.complete = false;
    too_large_ = true;
  }

  void fail_module(Scope& scope, const LayerEntry& entry, const std::string& message, const std::string& hint) {
    problems_.add(entry.module_pos, at_key(entry.path, "module"), message, hint);
    fail(scope, entry);
  }

  /// A layer "a" has inner tensors "a.weight", "a.matmul"; a layer named "a.weight" would collide with them.
  void refuse_names_inside_names() {
    for (size_t i = 0; i < network_.layers.size(); ++i) {
      const LayerSpec& layer = network_.layers[i];
      for (size_t dot = layer.name.find('.'); dot != std::string::npos; dot = layer.name.find('.', dot + 1)) {
        const auto outer = index_.find(std::string_view(layer.name).substr(0, dot));
        if (outer == index_.end()) continue;
        problems_.add(pos_[i], layer.path,
                      "the name '" + layer.name + "' conflicts with the names inside layer '" + outer->first + "'",
                      "rename one of them");
      }
    }
  }

  const Modules& modules_;
  const std::vector<std::string>& fields_;
  const Names& vars_;
  Expander& expander_;
  Problems& problems_;
  Network network_;
  Scope* top_ = nullptr;
  std::map<std::string, size_t, std::less<>> index_;  ///< full name -> network_.layers
  std::vector<SourcePos> pos_;                        ///< position of each layer
  std::vector<std::string> open_;                     ///< modules being expanded
  size_t entries_ = 0, copied_values_ = 0;
  bool too_large_ = false;
};

}  // namespace

Network unroll(const LayerList& layers, const Modules& modules, const std::vector<std::string>& fields,
               const Names& vars, Expander& expander, Problems& problems) {
  return Unroller(modules, fields, vars, expander, problems).run(layers);
}

}  // namespace trainctl
