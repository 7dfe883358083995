// One call of a function of a plugin: the C structs of trainctl_plugin.h for our operands, and what happens when the
// function fails.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/ops/kernel.h"
#include "engine/ops/plugins/plugin_op.h"
#include "engine/ops/plugins/trainctl_plugin.h"

namespace trainctl {

/// A function of a plugin returned an error or threw. The message names the plugin, the function and the op.
struct PluginFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// While one exists, running_plugin() returns this text, which must outlive it.
class RunningPlugin {
 public:
  explicit RunningPlugin(const char* what);
  ~RunningPlugin();
  RunningPlugin(const RunningPlugin&) = delete;
  RunningPlugin& operator=(const RunningPlugin&) = delete;

 private:
  const char* outer_;
};

class PluginCall {
 public:
  PluginCall(const PluginOp& op, const Attrs& attrs);
  PluginCall(const PluginCall&) = delete;
  PluginCall& operator=(const PluginCall&) = delete;

  // Operands of a forward or a backward call, in the order of the node's operands.
  void bind_forward(std::span<const TensorArg> in, std::span<const TensorArg> out);
  void bind_backward(std::span<const TensorArg> in, std::span<const TensorArg> out);
  /// The same operands without data.
  void bind(PluginPass pass, Infos in, Infos out);

  trainctl_call& call() { return call_; }
  /// Completes the name of the function in errors: "rank 1 of 2, cut along n".
  void set_place(std::string place) { place_ = std::move(place); }
  /// Calls `function`, which returns 0 or fails, as trainctl_plugin.h says. Throws PluginFailure.
  void run(PluginFunction what, const std::function<int(trainctl_call*)>& function);

 private:
  /// Sets the pointers of `call_` to the lists below, after these were filled.
  void set_pointers();

  const PluginOp& op_;
  const Attrs attrs_;
  std::vector<std::string> texts_;
  std::vector<trainctl_value> values_;
  std::vector<trainctl_tensor> inputs_, outputs_, output_grads_, input_grads_;
  std::string place_;
  std::array<char, 512> error_{};
  trainctl_call call_{};
};

}  // namespace trainctl
