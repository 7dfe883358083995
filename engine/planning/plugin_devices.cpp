// The devices that the layers of plugins can run on.
#include "engine/planning/plugin_devices.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/ops/plugins/plugin_op.h"

namespace trainctl {
namespace {

/// Returns the plugin's op for a layer; null if the layer's type does not come from a plugin.
const PluginOp* plugin_of(const LayerSpec& layer) { return find_plugin_kernel(layer.type); }

/// True if the plugin's op has no CUDA kernel for its forward pass, or none for its gradient. Also applies to
/// evaluations: although they need no gradient, a job that trains is planned for both.
bool lacks_cuda(const PluginOp& op) {
  return op.c.forward_cuda == nullptr || (op.has_gradient() && op.c.backward_cuda == nullptr);
}

}  // namespace

const LayerSpec* layer_without_cuda(const JobSpec& spec) {
  const auto found = std::ranges::find_if(spec.network, [](const LayerSpec& layer) {
    const PluginOp* op = plugin_of(layer);
    return op != nullptr && lacks_cuda(*op);
  });
  return found == spec.network.end() ? nullptr : &*found;
}

void require_plugin_kernels(const JobSpec& spec) {
  if (spec.launch.device != Device::cuda) return;
  const LayerSpec* layer = layer_without_cuda(spec);
  if (layer == nullptr) return;
  const PluginOp& op = *plugin_of(*layer);
  const char* missing = op.c.forward_cuda == nullptr ? "forward_cuda" : "backward_cuda";
  throw SpecError(
      spec.position(layer->path), layer->path,
      fmt::format("plugin {} has no {} for '{}', so the layer cannot run on a GPU", op.file, missing, op.name),
      "set launch.device: cpu, or add the kernel to the plugin");
}

}  // namespace trainctl
