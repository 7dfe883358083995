// See the header.
#include "engine/search/cut_network.h"

#include <map>
#include <set>

namespace trainctl {

CutNetwork::CutNetwork(const Graph& g, const std::vector<LayerFacts>& f, const Units& u, const Folded& from)
    : graph(g), facts(f), units(u), folded(from) {
  std::map<std::string, const Place*> places;
  for (size_t i = 0; i < folded.job.network.size(); ++i) places[folded.job.network[i].name] = &folded.repeats.places[i];
  for (const Layer& layer : graph.layers) {
    const auto found = places.find(layer.name);
    const Place place = found == places.end() ? Place{.pattern = layer.name} : *found->second;
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
    if (of_run != -2 && of_run != run[l]) return 1;  // between a run and what is beside it
    of_run = run[l];
    of_blocks.insert(block[l]);
  }
  if (of_run < 0) return 1;
  const double whole = folded.repeats.blocks[static_cast<size_t>(of_run)],
               kept = folded.kept[static_cast<size_t>(of_run)];
  const double spans = static_cast<double>(of_blocks.size()) - 1;
  return kept > spans ? (whole - spans) / (kept - spans) : 1;
}

}  // namespace trainctl
