// Lists the cuts of a layer that a search considers, for the ways in which axes of a mesh can be divided.
#include "engine/search/cuts/cut_candidates.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/plan/plan.h"

namespace trainctl {
namespace {

/// Assigns each run to a factor, or to none.
class Spread {
 public:
  Spread(const Mesh& mesh, const Layer& layer, const LayerFacts& facts, const AxisSplit& split, Effort effort)
      : mesh_(mesh), layer_(layer), facts_(facts), split_(split), any_(effort == Effort::high || split.size() == 1) {
    axes_.resize(layer.factors.size());
  }

  CutCandidates all() {
    place(0);
    return std::move(found_);
  }

 private:
  bool may_cut(int factor) const {
    return facts_.why_not[static_cast<size_t>(factor)].empty() &&
           layer_.factors[static_cast<size_t>(factor)].size % mesh_.ways(axes_[static_cast<size_t>(factor)]) == 0;
  }

  /// Assigns run number `run` to each factor that may be cut, and to none, and continues with the next run. Complete
  /// assignments are added to found_.
  void place(size_t run) {
    if (run == split_.size()) {
      add_once(found_, axes_);
      return;
    }
    for (int f = 0; f < static_cast<int>(axes_.size()); ++f) {
      if (!any_ && run == 0 && f != facts_.batch_factor) continue;
      FactorAxes before = axes_;
      Axes& axes = axes_[static_cast<size_t>(f)];
      axes.insert(axes.end(), split_[run].begin(), split_[run].end());
      if (may_cut(f)) place(run + 1);
      axes_ = std::move(before);
    }
    place(run + 1);
  }

  const Mesh& mesh_;
  const Layer& layer_;
  const LayerFacts& facts_;
  const AxisSplit& split_;
  const bool any_;
  FactorAxes axes_;
  CutCandidates found_;
};

bool has_ways(const Mesh& mesh, const FactorAxes& axes, const std::vector<int64_t>& ways) {
  for (size_t f = 0; f < axes.size(); ++f)
    if (mesh.ways(axes[f]) != ways[f]) return false;
  return true;
}

}  // namespace

void add_once(CutCandidates& all, FactorAxes axes) {
  if (std::find(all.begin(), all.end(), axes) == all.end()) all.push_back(std::move(axes));
}

CutCandidates cut_candidates(const Mesh& mesh, const Layer& layer, const LayerFacts& facts, const AxisSplit& split,
                             Effort effort) {
  return Spread(mesh, layer, facts, split, effort).all();
}

CutCandidates with_strategy(const Mesh& mesh, CutCandidates all, const std::vector<int64_t>& ways) {
  constexpr size_t kMost = 24;
  CutCandidates fitting;
  for (FactorAxes& axes : all)
    if (has_ways(mesh, axes, ways)) fitting.push_back(std::move(axes));
  return fitting.empty() ? assignments(mesh, ways, kMost) : fitting;
}

CutCandidates cutting_no_batch(CutCandidates all, int batch_factor, const Axes& run) {
  CutCandidates kept;
  for (const FactorAxes& axes : all)
    for (int f = 0; f < static_cast<int>(axes.size()); ++f)
      if (f != batch_factor && std::search(axes[static_cast<size_t>(f)].begin(), axes[static_cast<size_t>(f)].end(),
                                           run.begin(), run.end()) != axes[static_cast<size_t>(f)].end()) {
        kept.push_back(axes);
        break;
      }
  return kept.empty() ? all : kept;
}

std::vector<AxisSplit> axis_splits(const Mesh& mesh, Effort effort) {
  const int n = mesh.num_axes();
  const auto run = [](int from, int to) {
    Axes axes;
    for (int a = from; a < to; ++a) axes.push_back(a);
    return axes;
  };
  if (n == 0) return {{}};
  std::vector<AxisSplit> splits = {{run(0, n)}};
  for (int i = 1; i < n; ++i) splits.push_back({run(0, i), run(i, n)});
  if (effort == Effort::high)
    for (int i = 1; i < n; ++i)
      for (int k = i + 1; k < n; ++k) splits.push_back({run(0, i), run(i, k), run(k, n)});
  return splits;
}

AxisSplit split_per_axis(const Mesh& mesh) {
  AxisSplit per_axis;
  for (Axis a = 0; a < mesh.num_axes(); ++a) per_axis.push_back({a});
  return per_axis;
}

std::vector<PatternCuts> every_cut(const CutNetwork& network, const Mesh& mesh,
                                   const std::vector<std::optional<LayerStrategy>>& strategies) {
  const AxisSplit per_axis = split_per_axis(mesh);
  std::vector<PatternCuts> all;
  std::set<std::string> reported;
  for (size_t l = 0; l < network.graph.layers.size(); ++l) {
    if (strategies[l] || network.facts[l].is_loss || !reported.insert(network.patterns[l]).second) continue;
    PatternCuts of_pattern{network.patterns[l], {}};
    std::set<std::vector<Ints>> distinct;
    for (const FactorAxes& axes :
         cut_candidates(mesh, network.graph.layers[l], network.facts[l], per_axis, Effort::high)) {
      std::vector<Ints> cuts = cuts_of(mesh, network.graph.layers[l], axes);
      if (distinct.insert(cuts).second) of_pattern.cuts.push_back(std::move(cuts));
    }
    if (of_pattern.cuts.size() > 1) all.push_back(std::move(of_pattern));
  }
  return all;
}

std::vector<Ints> cuts_of(const Mesh& mesh, const Layer& layer, const FactorAxes& axes) {
  std::vector<Ints> cuts;
  for (const TensorRule& rule : layer.input_rules) {
    Ints of_input;
    for (const DimRule& dim : rule) {
      const int f = cut_factor(dim, layer.factors);
      of_input.push_back(f < 0 ? 1 : mesh.ways(axes[static_cast<size_t>(f)]));
    }
    cuts.push_back(std::move(of_input));
  }
  return cuts;
}

}  // namespace trainctl
