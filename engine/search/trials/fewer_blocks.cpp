// Determines how many blocks can be left out of each stage of a job, and leaves them out.
#include "engine/search/trials/fewer_blocks.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/plan/stages/stages.h"

namespace trainctl {
namespace {

/// Returns for each of the run's blocks the stage that all of its layers are in; -1: it has layers of two stages.
std::vector<int> stages_of_blocks(const Repeats& repeats, const std::vector<int>& stage_of_layer) {
  constexpr int kUnknown = -2;
  std::vector<int> stages(static_cast<size_t>(repeats.blocks[0]), kUnknown);
  for (size_t l = 0; l < stage_of_layer.size(); ++l) {
    if (repeats.places[l].run < 0 || stage_of_layer[l] < 0) continue;
    int& of_block = stages[static_cast<size_t>(repeats.places[l].block)];
    of_block = of_block == kUnknown || of_block == stage_of_layer[l] ? stage_of_layer[l] : -1;
  }
  return stages;
}

}  // namespace

std::vector<int> expected_stages(const SearchNetwork& network, const JobSpec& job, const Repeats& repeats,
                                 const CostModel& cost, int virtual_stages) {
  const std::vector<double> of_node = node_seconds(network.graph, cost);
  std::vector<double> of_graph(network.graph.layers.size(), 0);
  for (size_t n = 0; n < of_node.size(); ++n)
    of_graph[static_cast<size_t>(network.cuts->owners[static_cast<size_t>(network.graph.nodes[n].layer)])] +=
        of_node[n];
  const std::vector<LayerId> layers = network.cuts->layers_of_whole(job, repeats);
  std::vector<double> seconds;
  for (LayerId l : layers)
    if (l >= 0) seconds.push_back(of_graph[static_cast<size_t>(l)]);
  std::vector<int> stages(layers.size(), -1);
  if (static_cast<int>(seconds.size()) < virtual_stages) return stages;
  const std::vector<int> parts = balanced_partition(seconds, virtual_stages);
  for (size_t i = 0, at = 0; i < layers.size(); ++i)
    if (layers[i] >= 0) stages[i] = parts[at++];
  return stages;
}

int blocks_to_leave_out(const Repeats& repeats, const std::vector<int>& stage_of_layer, int virtual_stages, int least) {
  if (repeats.blocks.size() != 1) return 0;
  std::vector<int> whole(static_cast<size_t>(virtual_stages), 0);
  for (int stage : stages_of_blocks(repeats, stage_of_layer))
    if (stage >= 0) ++whole[static_cast<size_t>(stage)];
  return *std::min_element(whole.begin(), whole.end()) - least;
}

JobSpec with_fewer_blocks(const JobSpec& job, const Repeats& repeats, const std::vector<int>& stage_of_layer,
                          int virtual_stages, int left_out) {
  const std::vector<int> stages = stages_of_blocks(repeats, stage_of_layer);
  std::vector<int> left(static_cast<size_t>(virtual_stages), left_out);
  std::vector<bool> kept;
  for (int stage : stages) kept.push_back(stage < 0 || left[static_cast<size_t>(stage)]-- <= 0);
  Folded folded = fold(job, repeats, {static_cast<int>(std::count(kept.begin(), kept.end(), true))});
  // Equal blocks: the first ones of the folded network represent those that are kept.
  std::vector<StageRule>& rules = folded.job.parallel.stage_config;
  size_t at = 0;
  for (size_t l = 0; l < stage_of_layer.size(); ++l) {
    const BlockPlace& place = repeats.places[l];
    if (place.run >= 0 && !kept[static_cast<size_t>(place.block)]) continue;
    const std::string& name = folded.job.network[at++].name;
    if (stage_of_layer[l] >= 0) rules.push_back({name, stage_of_layer[l], ""});
  }
  return std::move(folded.job);
}

}  // namespace trainctl
