// See the header.
#include "engine/spec/adapters.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/base/text.h"

namespace trainctl {
namespace {

bool adapter_names(const std::string& pattern, const std::string& name) {
  return name == pattern || glob_match(pattern, name);
}

bool is_adapted(const LoraSpec& lora, const LayerSpec& layer) {
  return layer.type == "dense" && std::ranges::any_of(lora.layers, [&](const std::string& pattern) {
           return adapter_names(pattern, layer.name);
         });
}

LayerSpec adapter_dense(const LayerSpec& beside, const std::string& suffix, std::string input, int64_t units) {
  return {.name = beside.name + suffix,
          .type = "dense",
          .inputs = {std::move(input)},
          .attrs = {{"units", units}, {"bias", false}},
          .path = beside.path,
          .use = beside.use};
}

}  // namespace

std::vector<LayerSpec> adapter_layers(const JobSpec& spec, const LayerSpec& layer) {
  if (!spec.adapters.lora || !is_adapted(*spec.adapters.lora, layer)) return {};
  const LoraSpec& lora = *spec.adapters.lora;
  const std::string path = layer.path, use = layer.use;
  std::vector<LayerSpec> layers;
  std::string x = layer.inputs[0];
  if (lora.dropout > 0) {
    layers.push_back({.name = layer.name + ".lora_dropout",
                      .type = "dropout",
                      .inputs = {x},
                      .attrs = {{"p", lora.dropout}},
                      .path = path,
                      .use = use});
    x = layers.back().name;
  }
  layers.push_back(adapter_dense(layer, ".lora_a", x, lora.rank));
  LayerSpec up = adapter_dense(layer, ".lora_b", layers.back().name, layer.attrs.integer("units"));
  up.attrs.set("init.type", std::string("constant"));
  up.attrs.set("init.value", 0.0);
  layers.push_back(std::move(up));
  layers.push_back({.name = layer.name + ".lora_scale",
                    .type = "scale",
                    .inputs = {layers.back().name},
                    .attrs = {{"factor", adapter_factor(lora)}},
                    .path = path,
                    .use = use});
  layers.push_back({.name = layer.name + ".lora",
                    .type = "add",
                    .inputs = {layer.name, layers.back().name},
                    .attrs = {},
                    .path = path,
                    .use = use});
  return layers;
}

double adapter_factor(const LoraSpec& lora) {
  const auto rank = static_cast<double>(lora.rank);
  return lora.alpha / (lora.rank_stabilized ? std::sqrt(rank) : rank);
}

bool is_adapter_parameter(const JobSpec& spec, std::string_view name) {
  return spec.adapters.lora && (name.ends_with(".lora_a.weight") || name.ends_with(".lora_b.weight"));
}

std::vector<Diagnostic> check_adapters(const JobSpec& spec) {
  std::vector<Diagnostic> errors;
  if (!spec.adapters.lora) return errors;
  const std::vector<std::string>& patterns = spec.adapters.lora->layers;
  for (size_t p = 0; p < patterns.size(); ++p) {
    std::string other;  // a layer that it names and that cannot be adapted
    bool adapts = false;
    for (const LayerSpec& layer : spec.network) {
      if (!adapter_names(patterns[p], layer.name)) continue;
      adapts = adapts || layer.type == "dense";
      if (layer.type != "dense") other = layer.name + ", which is " + layer.type;
    }
    const std::string path = "adapters.lora.layers[" + std::to_string(p) + "]";
    if (!adapts)
      errors.push_back({spec.position(path), path,
                        other.empty() ? "no layer matches '" + patterns[p] + "'"
                                      : "'" + patterns[p] + "' names no dense layer, but " + other,
                        "adapters are for layers of type dense"});
  }
  return errors;
}

}  // namespace trainctl
