// Computes the ways to cut all layers on the ranks of a stage, and keeps them for later requests.
#include "engine/search/cuts/cut_choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/text.h"
#include "engine/plan/axes/size_strategies.h"

namespace trainctl {
namespace {

/// Number of cuts per price of memory.
constexpr size_t kManyCuts = 100;

std::string ranks_text(int ranks) { return plural(ranks, "rank"); }

std::string name_of(const Mesh& mesh, const AxisSplit& split) {
  std::vector<std::string> runs;
  for (const Axes& run : split) runs.push_back(std::to_string(mesh.ways(run)));
  return mesh.size() == 1 ? "1 rank" : join(runs, " x ") + " ranks";
}

/// "data 2 x tensor 1 x context 4"
std::string name_of_sizes(const Mesh& mesh, const ParallelSpec& parallel) {
  const SizeAxes axes = size_axes(mesh, parallel);
  return fmt::format("data {} x tensor {} x context {}", mesh.ways(axes.data), mesh.ways(axes.tensor),
                     mesh.ways(axes.context));
}

}  // namespace

std::vector<std::shared_ptr<const CutChoice>> CutChoices::of(int stages, int micro_batches, double seconds_per_byte,
                                                             std::vector<Diagnostic>& illegal) {
  const Effort effort = job_.parallel.search.effort;
  const std::shared_ptr<const SearchNetwork> network = networks_.of(micro_batches);
  const Mesh mesh(job_.launch.ranks / stages);
  std::vector<Diagnostic> errors;
  auto strategies = network->strategies(mesh, stages, errors);
  if (!errors.empty()) {
    illegal = std::move(errors);
    return {};
  }
  const bool is_free =
      std::none_of(strategies.begin(), strategies.end(), [](const auto& given) { return given.has_value(); });
  CutSpace space(*network->cuts, mesh, effort, cost_, micro_batches, std::move(strategies));
  std::vector<std::shared_ptr<const CutChoice>> all;
  const auto add = [&](std::string name, KnownAs known_as, FoundCuts cuts) {
    all.push_back(std::make_shared<CutChoice>(CutChoice{std::move(name), known_as, network, mesh, std::move(cuts)}));
  };
  const auto find = [&](const AxisSplit& split, CutAim aim) {
    return find_cuts(space, split, aim, seconds_per_byte, bytes_per_weight());
  };
  if (job_.parallel.search.algorithm == SearchAlgorithm::sharding_propagation) {
    std::optional<FoundCuts> least;
    for (const AxisSplit& split : axis_splits(mesh, effort))
      if (FoundCuts cuts = find(split, CutAim::least_redistribution); !least || cuts.seconds < least->seconds)
        least = std::move(cuts);
    add("least redistribution on " + ranks_text(mesh.size()), KnownAs::nothing, std::move(*least));
    return all;
  }
  if (job_.parallel.has_sizes()) {  // they fix all cuts
    add(name_of_sizes(mesh, job_.parallel), KnownAs::data_parallel,
        find(axis_splits(mesh, effort).front(), CutAim::least_time));
    return all;
  }
  if (is_free && mesh.size() > 1 && seconds_per_byte == 0) {
    add("data parallel on " + ranks_text(mesh.size()), KnownAs::data_parallel, data_parallel_cuts(space));
    if (stages == 1) {
      add("replicated on all " + ranks_text(mesh.size()), KnownAs::whole, whole_cuts(space));
      const AxisSplit split = within_hosts(mesh);
      add("tensor parallel on " + name_of(mesh, split), KnownAs::tensor_parallel, find(split, CutAim::tensor_parallel));
    }
  }
  for (const AxisSplit& split : axis_splits(mesh, effort))
    add(name_of(mesh, split), KnownAs::nothing, find(split, CutAim::least_time));
  return all;
}

std::vector<std::shared_ptr<const CutChoice>> CutChoices::many(int stages, int micro_batches, double memory) {
  const std::shared_ptr<const SearchNetwork> network = networks_.of(micro_batches);
  const Mesh mesh(job_.launch.ranks / stages);
  std::vector<Diagnostic> errors;
  CutSpace space(*network->cuts, mesh, Effort::high, cost_, micro_batches, network->strategies(mesh, stages, errors));
  if (!errors.empty() || job_.parallel.has_sizes()) return {};
  std::vector<FoundCuts> found = least_cuts(space, 0, bytes_per_weight(), kManyCuts);
  const double spread = found.back().seconds - found.front().seconds;
  for (double factor : {0.1, 1.0, 10.0})
    for (FoundCuts& cuts : least_cuts(space, factor * spread / memory, bytes_per_weight(), kManyCuts))
      found.push_back(std::move(cuts));
  std::vector<std::shared_ptr<const CutChoice>> all;
  std::set<std::vector<FactorAxes>> known;
  for (FoundCuts& cuts : found) {
    if (!known.insert(cuts.of_layer).second) continue;
    const size_t number = numbers_.try_emplace({mesh.size(), cuts.of_layer}, numbers_.size() + 1).first->second;
    all.push_back(std::make_shared<CutChoice>(CutChoice{fmt::format("{}, cuts {}", ranks_text(mesh.size()), number),
                                                        KnownAs::nothing, network, mesh, std::move(cuts)}));
  }
  return all;
}

/// The axes within a host, separately from those between hosts.
AxisSplit CutChoices::within_hosts(const Mesh& mesh) const {
  std::vector<AxisSplit> splits = axis_splits(mesh, Effort::low);
  for (AxisSplit& split : splits)
    if (mesh.ways(split.back()) <= cost_.machine().devices) return std::move(split);
  return std::move(splits.back());
}

}  // namespace trainctl
