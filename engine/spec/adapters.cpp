// See the header.
#include "engine/spec/adapters.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/base/text.h"

namespace trainctl {
namespace {

constexpr std::string_view kLoraDropout = ".lora_dropout", kLoraA = ".lora_a", kLoraB = ".lora_b",
                           kLoraScale = ".lora_scale";

bool pattern_matches(const std::string& pattern, const std::string& name) {
  return name == pattern || glob_match(pattern, name);
}

bool is_adapted(const LoraSpec& lora, const LayerSpec& layer) {
  return layer.type == "dense" && std::ranges::any_of(lora.layers, [&](const std::string& pattern) {
           return pattern_matches(pattern, layer.name);
         });
}

LayerSpec layer_beside(const LayerSpec& beside, std::string_view suffix, const char* type,
                       std::vector<std::string> inputs, Attrs attrs) {
  return {.name = beside.name + std::string(suffix),
          .type = type,
          .inputs = std::move(inputs),
          .attrs = std::move(attrs),
          .path = beside.path,
          .use = beside.use};
}

}  // namespace

std::vector<LayerSpec> adapter_layers(const JobSpec& spec, const LayerSpec& layer) {
  if (!spec.adapters.lora || !is_adapted(*spec.adapters.lora, layer)) return {};
  const LoraSpec& lora = *spec.adapters.lora;
  std::vector<LayerSpec> layers;
  std::string last = layer.inputs[0];
  const auto add = [&](std::string_view suffix, const char* type, Attrs attrs) {
    layers.push_back(layer_beside(layer, suffix, type, {last}, std::move(attrs)));
    last = layers.back().name;
  };
  if (lora.dropout > 0) add(kLoraDropout, "dropout", {{"p", lora.dropout}});
  add(kLoraA, "dense", {{"units", lora.rank}, {"bias", false}});
  add(kLoraB, "dense",
      {{"units", layer.attrs.integer("units")},
       {"bias", false},
       {"init.type", std::string("constant")},
       {"init.value", 0.0}});
  add(kLoraScale, "scale", {{"factor", adapter_factor(lora)}});
  layers.push_back(layer_beside(layer, kAdapterSum, "add", {layer.name, last}, {}));
  return layers;
}

std::string_view adapted_layer(const JobSpec& spec, std::string_view layer) {
  if (!spec.adapters.lora) return "";
  for (const std::string_view end : {kLoraDropout, kLoraA, kLoraB, kLoraScale, kAdapterSum})
    if (layer.ends_with(end)) return layer.substr(0, layer.size() - end.size());
  return "";
}

double adapter_factor(const LoraSpec& lora) {
  const auto rank = static_cast<double>(lora.rank);
  return lora.alpha / (lora.rank_stabilized ? std::sqrt(rank) : rank);
}

bool is_adapter_parameter(std::string_view name) { return name.ends_with(kAdapterA) || name.ends_with(kAdapterB); }

bool is_adapter_parameter(const JobSpec& spec, std::string_view name) {
  return spec.adapters.lora && is_adapter_parameter(name);
}

bool is_frozen(const JobSpec& spec, const std::string& name) {
  if (is_adapter_parameter(spec, name)) return false;
  if (spec.train.freeze.empty()) return spec.adapters.lora.has_value();
  return std::ranges::any_of(spec.train.freeze,
                             [&](const std::string& pattern) { return pattern_matches(pattern, name); });
}

FrozenType storage_of(const JobSpec& spec, const std::string& name) {
  constexpr std::string_view kWeight = ".weight";
  const FrozenType type = spec.train.frozen_type;
  const bool is_same = type == FrozenType::same || (type == FrozenType::bf16 && spec.precision == Precision::bf16);
  if (is_same || !name.ends_with(kWeight) || !is_frozen(spec, name)) return FrozenType::same;
  const auto is_dense = [](const LayerSpec& layer) { return layer.type == "dense"; };
  const auto last = std::find_if(spec.network.rbegin(), spec.network.rend(), is_dense);
  const std::string_view owner = std::string_view(name).substr(0, name.size() - kWeight.size());
  const bool has_owner = std::ranges::any_of(
      spec.network, [&](const LayerSpec& layer) { return layer.name == owner && is_dense(layer); });
  return has_owner && last->name != owner ? type : FrozenType::same;
}

bool saves_without_base(const JobSpec& spec) { return spec.adapters.lora && spec.weights && !spec.weights->partial; }

std::vector<Diagnostic> check_adapters(const JobSpec& spec) {
  std::vector<Diagnostic> errors;
  if (!spec.adapters.lora) return errors;
  const std::vector<std::string>& patterns = spec.adapters.lora->layers;
  for (size_t p = 0; p < patterns.size(); ++p) {
    std::string other;  // a layer that it names and that cannot be adapted
    bool adapts = false;
    for (const LayerSpec& layer : spec.network) {
      if (!pattern_matches(patterns[p], layer.name)) continue;
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
