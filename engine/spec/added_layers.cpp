// Layers that a layer of the job adds to the network (EntryType::added), such as the shared expert of a mixture.
#include "engine/spec/added_layers.h"

#include <string>
#include <utility>

#include "engine/base/entry_types.h"

namespace trainctl {

std::vector<LayerSpec> added_layers(const LayerSpec& layer) {
  const EntryType* type = find_layer_type(layer.type);
  if (type == nullptr || type->added == nullptr) return {};
  std::vector<LayerSpec> layers;
  const auto full_name = [&](const std::string& name) {
    if (name == kLayerInput) return layer.inputs.at(0);
    return name == kLayerOutput ? layer.name : layer.name + "." + name;
  };
  for (AddedLayer& added : type->added(layer.attrs)) {
    std::vector<std::string> inputs;
    for (const std::string& input : added.inputs) inputs.push_back(full_name(input));
    layers.push_back({.name = full_name(added.suffix),
                      .type = std::move(added.type),
                      .inputs = std::move(inputs),
                      .attrs = std::move(added.attrs),
                      .path = layer.path,
                      .use = layer.use});
  }
  return layers;
}

void visit_layers(const JobSpec& spec, const std::function<void(const LayerSpec&)>& visit) {
  for (const LayerSpec& layer : spec.network) {
    visit(layer);
    for (const LayerSpec& added : added_layers(layer)) visit(added);
  }
}

std::string_view layer_before_dot(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

}  // namespace trainctl
