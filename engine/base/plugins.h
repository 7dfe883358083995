// Plugins: shared libraries with layer types of their own, which a job names in `plugins` (docs/plugins.md). Their
// interface is engine/ops/plugins/trainctl_plugin.h. A program that parses jobs links trainctl_ops, which defines this.
#pragma once

#include <stdexcept>
#include <string>

namespace trainctl {

/// A plugin that cannot be loaded.
struct PluginError : std::runtime_error {
  explicit PluginError(const std::string& message, std::string next = "")
      : std::runtime_error(message), hint(std::move(next)) {}
  std::string hint;
};

/// Loads the library, which stays loaded, and adds its layer types to layer_types(). Does nothing if it is loaded.
/// Returns the SHA-256 of the file in hexadecimal digits. `digest`: the expected one; empty: any. Throws PluginError.
/// Runs code of the file, so it is only called for a file that the user has named.
std::string load_plugin(const std::string& path, const std::string& digest);

/// The plugin and the function whose code this thread runs: "plugin ./my_op.so: forward of op scale". Null: none. May
/// be called in a signal handler.
const char* running_plugin();

}  // namespace trainctl
