// An op of a plugin (trainctl_plugin.h) as an ordinary op: its OpDef, that of its gradient, and its layer. Nodes of
// such ops have the attr `plugin_op`, by which the functions of their OpDef find it.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "engine/ops/layer_def.h"
#include "engine/ops/op_def.h"
#include "engine/ops/plugins/trainctl_plugin.h"

namespace trainctl {

/// Attr of nodes: PluginOp::key.
inline constexpr const char* kPluginOp = "plugin_op";

enum class PluginPass : uint8_t { forward, backward };

enum class PluginFunction : uint8_t { shapes, rule, forward, backward, cost };

struct PluginOp {
  /// `file`: the plugin's path. `digest`: that of its contents. The struct stays valid.
  PluginOp(const std::string& file, const std::string& digest, const trainctl_op& op);
  PluginOp(const PluginOp&) = delete;
  PluginOp& operator=(const PluginOp&) = delete;

  const std::string file;
  const std::string name, gradient_name;
  const std::string key;  ///< "scale@9f86d081884c": a node's attrs state the code that it runs
  const trainctl_op& c;
  OpDef op, gradient;  ///< `gradient` is an op only if has_gradient()
  LayerDef layer;

  size_t operands() const { return static_cast<size_t>(c.num_inputs + c.num_parameters); }
  bool has_gradient() const { return c.backward != nullptr; }
  bool supports_bf16() const { return (c.flags & TRAINCTL_SUPPORTS_BF16) != 0; }
  bool reads_input(size_t i) const { return (c.backward_reads_inputs >> i & 1) != 0; }
  bool reads_output(size_t o) const { return (c.backward_reads_outputs >> o & 1) != 0; }
  /// Returns whether input or parameter i has a gradient.
  bool is_differentiable(size_t i) const;
  /// "plugin ./my_op.so: forward of op scale"
  const char* running(PluginFunction what) const { return running_.at(static_cast<size_t>(what)).c_str(); }

 private:
  std::array<std::string, 5> running_;
};

/// The plugin's op that a node with these attrs runs.
const PluginOp& plugin_op(const Attrs& attrs);
/// By the name of its kernel, or of that of its gradient. Null: it is none of a plugin.
const PluginOp* find_plugin_kernel(std::string_view kernel);

/// The ops of a loaded plugin, in its order.
std::vector<const PluginOp*> ops_of_plugin(const std::string& digest);

/// Adds the op, whose table has been checked, to the program's ops and layers.
void add_plugin_op(const std::string& file, const std::string& digest, const trainctl_op& op);

/// The operands of a backward node, in the order of its inputs and outputs, as its attrs state.
struct BackwardOperands {
  Ints output_grads;  ///< outputs that have a gradient
  Ints input_grads;   ///< inputs and parameters whose gradients are wanted
};
BackwardOperands backward_operands(const Attrs& attrs);

}  // namespace trainctl
