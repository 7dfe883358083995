// Names and patterns of layers in a job, outside of its network.
#include "engine/spec/layer_references.h"

#include <algorithm>
#include <vector>

#include "engine/base/name_pattern.h"
#include "engine/base/text.h"
#include "engine/spec/adapters.h"
#include "engine/spec/added_layers.h"

namespace trainctl {

void LayerReferences::replace_by_output(std::string& name, const std::string& path) {
  if (const auto known = network_.outputs.find(name); known != network_.outputs.end())
    name = known->second;
  else if (!refuse_several(name, job_.position(path), path) && network_.complete)
    problems_.add(job_.position(path), path, "there is no layer '" + name + "'",
                  did_you_mean(name, network_.print_names));
}

bool LayerReferences::refuse_several(const std::string& name, const SourcePos& pos, const std::string& path) {
  const auto several = network_.several.find(name);
  if (several == network_.several.end()) return false;
  problems_.add(pos, path, "'" + name + "' has " + std::to_string(several->second.size()) + " outputs",
                "name one: " + join(several->second));
  return true;
}

void LayerReferences::demand_match(const std::string& pattern, const SourcePos& pos, const std::string& path) {
  // Layers before a loss, "loss.ctc", are known when the graph is built: read_strategies() checks them.
  const bool is_placed = path.starts_with("parallel.strategies") || path.starts_with("parallel.stage_config");
  const bool of_loss = pattern == "loss" || (is_placed && pattern.starts_with("loss.") && !is_name_pattern(pattern));
  if (!network_.complete || problems_.full() || (of_loss && job_.loss) || matches(pattern)) return;
  if (problems_.touch("network") || problems_.touch("modules")) return;
  if (is_name_pattern(pattern)) {
    problems_.add(pos, path, "no layer matches '" + pattern + "'", nearest_layer(pattern));
  } else if (const std::string layer = layer_of_output(pattern); !layer.empty()) {
    problems_.add(pos, path, "'" + pattern + "' is an output of layer '" + layer + "'",
                  "name the layer: '" + layer + "'");
  } else if (network_.outputs.contains(pattern) || network_.several.contains(pattern)) {
    problems_.add(pos, path, "'" + pattern + "' is a module, not a layer",
                  "to select all of its layers: '" + pattern + ".*'");
  } else {
    problems_.add(pos, path, "there is no layer '" + pattern + "'", nearest_layer(pattern));
  }
}

bool LayerReferences::matches(const std::string& pattern) {
  if (layer_names_.empty()) {
    visit_layers(job_, [&](const LayerSpec& layer) {
      layer_names_.insert(layer.name);
      for (const LayerSpec& adapter : adapter_layers(job_, layer)) layer_names_.insert(adapter.name);
    });
  }
  if (!is_name_pattern(pattern)) return layer_names_.contains(pattern);
  return std::ranges::any_of(layer_names_, [&](const std::string& name) { return name_matches(pattern, name); });
}

std::string LayerReferences::layer_of_output(const std::string& name) const {
  for (const LayerSpec& layer : job_.network) {
    const std::vector<std::string> outputs = layer.output_names();
    if (!layer.outputs.empty() && std::find(outputs.begin(), outputs.end(), name) != outputs.end()) return layer.name;
  }
  return "";
}

std::string LayerReferences::nearest_layer(const std::string& pattern) const {
  std::vector<std::string> names;
  for (const LayerSpec& layer : job_.network) names.push_back(layer.name);
  if (job_.loss) names.emplace_back("loss");
  const std::string guess = did_you_mean(pattern, names);
  if (!guess.empty()) return guess;
  constexpr size_t kShown = 12;
  const bool more = names.size() > kShown;
  names.resize(std::min(names.size(), kShown));
  return "layers: " + join(names) + (more ? ", ..." : "");
}

}  // namespace trainctl
