// load_plugin (base/plugins.h): opens the library, checks its table, and adds its ops. Nothing is added if anything is
// wrong.
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <set>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/plugins.h"
#include "engine/base/sha256.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/plugins/plugin_call.h"
#include "engine/ops/plugins/plugin_crash.h"
#include "engine/ops/plugins/plugin_op.h"

namespace trainctl {
namespace {

constexpr const char* kEntry = "trainctl_plugin";

/// Fields that every layer has (spec/fields.h), or that mean something for a layer or for a node.
const std::set<std::string_view> kReservedFields = {"type",   "name",  "inputs", "outputs",   "if",    "module", "with",
                                                    "repeat", "index", "share",  "bias_init", "units", kPluginOp};

bool is_plain_name(const char* name) {
  if (name == nullptr || *name < 'a' || *name > 'z') return false;
  return std::string_view(name).find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
}

std::string quoted(const char* name) { return name == nullptr ? "NULL" : fmt::format("'{}'", name); }

/// Checks all that is known before an op runs. Throws PluginError.
class TableCheck {
 public:
  TableCheck(const std::string& path, const trainctl_op& op) : path_(path), op_(op) {}

  void check() {
    demand(is_plain_name(op_.name), "a name consists of lower-case letters, digits and _, and begins with a letter");
    demand(op_.doc != nullptr && *op_.doc != '\0', "doc is missing");
    check_counts();
    check_attributes();
    check_operands();
    demand(op_.rule != nullptr || op_.make_rule != nullptr, "it has neither rule nor make_rule");
    demand(op_.forward != nullptr, "it has no forward kernel");
    demand(op_.backward != nullptr || op_.num_parameters == 0, "it has parameters, but no backward kernel");
    demand(op_.backward_cuda == nullptr || op_.backward != nullptr, "it has backward_cuda, but no backward kernel");
    demand(op_.parameter_shapes != nullptr || op_.num_parameters == 0, "it has parameters, but no parameter_shapes");
    demand(op_.backward_reads_inputs >> (op_.num_inputs + op_.num_parameters) == 0,
           "backward_reads_inputs names an input or a parameter that it does not have");
    demand(op_.backward_reads_outputs >> op_.num_outputs == 0,
           "backward_reads_outputs names an output that it does not have");
    demand(op_.examples != nullptr && op_.num_examples > 0, "it has no example, which trainctl check --plugin runs");
  }

 private:
  void demand(bool holds, const std::string& fault) const {
    if (!holds) throw PluginError(fmt::format("plugin {}: op {}: {}", path_, quoted(op_.name), fault));
  }

  void check_counts() const {
    const auto in_range = [](int32_t count, int32_t least) { return count >= least && count <= TRAINCTL_MAX_OPERANDS; };
    demand(in_range(op_.num_inputs, 1) && op_.inputs != nullptr,
           fmt::format("it needs 1 to {} inputs", TRAINCTL_MAX_OPERANDS));
    demand(in_range(op_.num_parameters, 0) && (op_.num_parameters == 0 || op_.parameters != nullptr),
           fmt::format("it can have 0 to {} parameters", TRAINCTL_MAX_OPERANDS));
    demand(in_range(op_.num_outputs, 1), fmt::format("it needs 1 to {} outputs", TRAINCTL_MAX_OPERANDS));
    demand(op_.num_attributes >= 0 && (op_.num_attributes == 0 || op_.attributes != nullptr), "attributes are missing");
  }

  void check_attributes() {
    for (int32_t i = 0; i < op_.num_attributes; ++i) {
      const trainctl_attribute& each = op_.attributes[i];
      demand(is_plain_name(each.name), fmt::format("{} is not a valid name of an attribute", quoted(each.name)));
      demand(!kReservedFields.contains(each.name),
             fmt::format("the attribute '{}' has the name of a field that layers have", each.name));
      demand(attributes_.insert(each.name).second, fmt::format("two attributes are named '{}'", each.name));
      demand(each.doc != nullptr, fmt::format("the attribute '{}' has no doc", each.name));
      demand(each.kind >= TRAINCTL_FLAG && each.kind <= TRAINCTL_TEXT,
             fmt::format("the attribute '{}' has the unknown kind {}", each.name, each.kind));
    }
  }

  void check_operands() {
    for (int32_t i = 0; i < op_.num_inputs; ++i)
      demand(op_.inputs[i].name != nullptr, fmt::format("input {} has no name", i));
    std::set<std::string_view> names;
    for (int32_t p = 0; p < op_.num_parameters; ++p) {
      const trainctl_parameter& each = op_.parameters[p];
      demand(is_plain_name(each.name), fmt::format("{} is not a valid name of a parameter", quoted(each.name)));
      demand(names.insert(each.name).second, fmt::format("two parameters are named '{}'", each.name));
      demand(each.init >= TRAINCTL_CONSTANT && each.init <= TRAINCTL_NORMAL,
             fmt::format("the parameter '{}' has the unknown init {}", each.name, each.init));
    }
  }

  const std::string& path_;
  const trainctl_op& op_;
  std::set<std::string_view> attributes_;
};

/// Throws PluginError for a name that an op, a layer or another op of this plugin has.
void require_free_names(const std::string& path, const trainctl_plugin_info& info) {
  std::set<std::string> taken;
  for (int32_t i = 0; i < info.num_ops; ++i) {
    const std::string name = info.ops[i].name;
    for (const std::string& each : {name, name + "_grad"}) {
      if (!taken.insert(each).second) throw PluginError(fmt::format("plugin {} has two ops named '{}'", path, each));
      if (const PluginOp* other = find_plugin_kernel(each))
        throw PluginError(fmt::format("plugin {}: the name '{}' is used by plugin {}", path, each, other->file),
                          "rename the op in one of them");
      if (find_kernel(each) != nullptr || find_op(each) != nullptr || find_layer(each) != nullptr)
        throw PluginError(fmt::format("plugin {}: trainctl has an op or layer named '{}'", path, each),
                          "rename the op");
    }
  }
}

/// Opens the library and returns the table that its entry function provides. Throws PluginError.
const trainctl_plugin_info& table_of(const std::string& path) {
  const std::string running = fmt::format("plugin {}: loading", path);
  const RunningPlugin guard(running.c_str());
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw PluginError(fmt::format("plugin {} cannot be loaded: {}", path, reason == nullptr ? "?" : reason),
                      "a plugin is a shared library: cc -shared -fPIC -o my_op.so my_op.c");
  }
  using Entry = const trainctl_plugin_info* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, kEntry));
  if (entry == nullptr)
    throw PluginError(fmt::format("plugin {} does not export the function {}", path, kEntry),
                      "define it with TRAINCTL_EXPORT of trainctl_plugin.h");
  const trainctl_plugin_info* info = nullptr;
  try {
    info = entry();
  } catch (...) {
    throw PluginError(fmt::format("plugin {}: {} threw an exception", path, kEntry));
  }
  if (info == nullptr) throw PluginError(fmt::format("plugin {}: {} returned NULL", path, kEntry));
  return *info;
}

void require_interface(const std::string& path, const trainctl_plugin_info& info) {
  if (info.abi != TRAINCTL_PLUGIN_ABI)
    throw PluginError(fmt::format("plugin {} was compiled for version {} of the interface, but this trainctl has {}",
                                  path, info.abi, TRAINCTL_PLUGIN_ABI),
                      "compile it with the trainctl_plugin.h of this trainctl");
  if (info.op_size != sizeof(trainctl_op))
    throw PluginError(
        fmt::format("plugin {}: its trainctl_op has {} bytes instead of {}", path, info.op_size, sizeof(trainctl_op)),
        "compile it with an unchanged trainctl_plugin.h");
  if (info.num_ops < 1 || info.ops == nullptr) throw PluginError(fmt::format("plugin {} has no ops", path));
}

std::string digest_of_plugin(const std::string& path) {
  Sha256 digest;
  std::error_code error;
  try {
    if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error))
      throw EnvError(path + " is not a regular file");
    digest.add_file(path);
  } catch (const EnvError& fault) {
    throw PluginError(std::string("the plugin cannot be loaded: ") + fault.what());
  }
  return digest.hex();
}

}  // namespace

/// Opens and checks the plugin, and adds its ops. A plugin whose contents are loaded already is not added again.
std::string load_plugin(const std::string& path, const std::string& digest) {
  static std::map<std::string, std::string> loaded;   // digest -> path
  static std::map<std::string, std::string> digests;  // path -> digest
  const std::string found = digest_of_plugin(path);
  if (!digest.empty() && found != digest)
    throw PluginError(fmt::format("plugin {} has different contents than the job states (SHA-256 {}…, expected {}…)",
                                  path, found.substr(0, 12), digest.substr(0, 12)),
                      "every rank runs the plugin that the job was planned with; copy that file here");
  if (loaded.contains(found)) return found;
  if (const auto before = digests.find(path); before != digests.end())
    throw PluginError(fmt::format("plugin {} has changed since this process loaded it", path), "start trainctl again");
  report_plugin_crashes();
  const trainctl_plugin_info& info = table_of(path);
  require_interface(path, info);
  for (int32_t i = 0; i < info.num_ops; ++i) TableCheck(path, info.ops[i]).check();
  require_free_names(path, info);
  for (int32_t i = 0; i < info.num_ops; ++i) add_plugin_op(path, found, info.ops[i]);
  loaded.emplace(found, path);
  digests.emplace(path, found);
  return found;
}

}  // namespace trainctl
