// Collects the facts of a graph that a search for cuts needs and that hold for any mesh.
#include "engine/search/cuts/cut_network.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "engine/spec/adapters.h"
#include "engine/spec/added_layers.h"

namespace trainctl {

/// Finds for each layer the layer that owns it, its place in the repeated blocks, and how many layers of the whole
/// network it stands for.
CutNetwork::CutNetwork(const Graph& g, const std::vector<LayerFacts>& f, const Units& u, const Folded& from)
    : graph(g), facts(f), units(u), folded(from) {
  std::map<std::string, const BlockPlace*> places;
  for (size_t i = 0; i < folded.job.network.size(); ++i) places[folded.job.network[i].name] = &folded.repeats.places[i];
  std::map<std::string_view, LayerId> known;
  for (const Layer& layer : graph.layers) {
    const auto id = static_cast<LayerId>(owners.size());
    known[layer.name] = id;
    auto owner_of = known.find(adapted_layer(folded.job, layer.name));
    if (owner_of == known.end() && !places.contains(layer.name)) owner_of = known.find(layer_before_dot(layer.name));
    owners.push_back(owner_of == known.end() ? id : owner_of->second);
    const std::string& owner = graph.layers[static_cast<size_t>(owners.back())].name;
    const auto found = places.find(owner);
    BlockPlace place = found == places.end() ? BlockPlace{.pattern = owner} : *found->second;
    place.pattern += layer.name.substr(owner.size());
    run.push_back(place.run);
    block.push_back(place.block);
    patterns.push_back(place.pattern);
    const size_t r = static_cast<size_t>(place.run);
    times.push_back(place.run < 0 ? 1 : static_cast<double>(folded.repeats.blocks[r]) / folded.kept[r]);
  }
}

double CutNetwork::times_of(const std::vector<int>& between) const {
  int of_run = -2;
  std::set<int> of_blocks;
  for (int unit : between) {
    const size_t l = static_cast<size_t>(units.all[static_cast<size_t>(unit)].layer);
    if (of_run != -2 && of_run != run[l]) return 1;  // between a run and its neighbor
    of_run = run[l];
    of_blocks.insert(block[l]);
  }
  if (of_run < 0) return 1;
  const double whole = folded.repeats.blocks[static_cast<size_t>(of_run)],
               kept = folded.kept[static_cast<size_t>(of_run)];
  const double spans = static_cast<double>(of_blocks.size()) - 1;
  return kept > spans ? (whole - spans) / (kept - spans) : 1;
}

std::vector<LayerId> CutNetwork::layers_of_whole(const JobSpec& whole, const Repeats& repeats) const {
  std::map<std::pair<std::string_view, int>, LayerId> known;  // by pattern and block
  for (size_t l = 0; l < patterns.size(); ++l) known[{patterns[l], block[l]}] = static_cast<LayerId>(l);
  std::vector<LayerId> layers;
  for (size_t i = 0; i < whole.network.size(); ++i) {
    const BlockPlace& place = repeats.places[i];
    int of_block = place.block;
    if (place.run >= 0 && of_block > 0) {
      const int all = repeats.blocks[static_cast<size_t>(place.run)],
                kept = folded.kept[static_cast<size_t>(place.run)];
      of_block = of_block == all - 1 ? kept - 1 : std::min(1, kept - 1);
    }
    const auto found = known.find({place.pattern, of_block});
    layers.push_back(found == known.end() ? -1 : found->second);
  }
  return layers;
}

}  // namespace trainctl
