// The layers of a job: reads them, and unrolls modules and repeats into one flat list.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/spec/expand.h"
#include "engine/spec/fields.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/problems.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {

inline constexpr size_t kMaxLayers = 10'000;

/// Pattern of names of layers and modules, for the schema: letters, digits, '_', '-' and '.' inside, no reserved word.
std::string layer_name_pattern();
/// Pattern of names of sample fields: layers name them as inputs, so no word that means something else there.
std::string sample_field_pattern();
bool is_sample_field_name(const std::string& name);

/// An item of `network` or of a module, as written.
struct LayerEntry {
  std::string name;                 ///< unique within its list; defaults filled in
  const EntryType* type = nullptr;  ///< null: a module, or a type that does not exist
  std::string module;               ///< the module used here
  int64_t repeat = 0;               ///< 0: not given, one copy without a number in its names
  std::vector<std::string> inputs;  ///< inputs as written; empty: the previous layer
  std::vector<SourcePos> input_pos;
  std::vector<std::string> outputs;  ///< names of several outputs, defaults filled in; empty: one
  Attrs attrs;
  bool left_out = false;  ///< its `if` is false
  YamlNode with;          ///< arguments of the module, as written
  std::string index;      ///< the name of the number of the copy; "": none
  std::string path;
  SourcePos pos;  ///< position of the type or module, for errors that concern the whole entry
  SourcePos module_pos, share_pos;
};

using LayerList = std::vector<LayerEntry>;

/// A block of layers as written: its content depends on the arguments of each use.
struct Module {
  struct Argument {
    std::string name;
    YamlNode fallback;  ///< the default; null: there is none, so every use must give the argument
  };
  std::vector<Argument> arguments;
  std::vector<std::string> inputs;  ///< names of its inputs; empty: one, called "input"
  YamlNode body;                    ///< the list of layers
  std::string path;                 ///< path of that list
  bool has_expressions = false;     ///< whether the body has any; if not, `layers` has been read from it
  LayerList layers;
};
using Modules = std::map<std::string, Module>;

/// The names of the items of a list of layers; those that have none are called relu, relu_1, … after their type or
/// module. Reads nothing else, so the layers may be wrong.
std::vector<std::string> names_of_layers(const YamlNode& list);

LayerList read_layers(const YamlNode& node, const std::string& path, Problems& problems);
/// Reads the modules. Expressions in them are only checked; each use gives their names values.
Modules read_modules(const YamlNode& node, const std::string& path, Expander& expander, Problems& problems);

struct Network {
  std::vector<LayerSpec> layers;
  std::vector<std::string> print_names;        ///< names allowed in `print` and `loss.input`
  std::map<std::string, std::string> outputs;  ///< layer, module or one of several outputs -> its full name
  /// Name of a layer or module with several outputs -> the names of these outputs (keys of `outputs`). The name of the
  /// layer or module itself does not name an output.
  std::map<std::string, std::vector<std::string>> several;
  std::string last;      ///< the name of the last item, whose output is the network's
  bool complete = true;  ///< false: after an error, the full names of some layers are not known
};

/// Expands modules, and resolves inputs and shares to full names. `fields`: fields of samples, which inputs may name.
Network unroll(const LayerList& layers, const Modules& modules, const std::vector<std::string>& fields,
               const Names& vars, Expander& expander, Problems& problems);

}  // namespace trainctl
