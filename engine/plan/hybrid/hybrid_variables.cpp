// Determines how parameters and states are cut: first those that a strategy names, then, by the factors of the layers
// that read them, all others.
#include "engine/plan/hybrid/hybrid_variables.h"

#include <fmt/format.h>

#include "engine/base/text.h"
#include "engine/plan/axes/candidates.h"

namespace trainctl {
namespace {

class HybridLayouts {
 public:
  HybridLayouts(const Graph& graph, const std::vector<std::optional<LayerStrategy>>& strategies, const JobSpec& spec,
                const Mesh& mesh, std::vector<Diagnostic>& errors)
      : graph_(graph), strategies_(strategies), spec_(spec), mesh_(mesh), errors_(errors) {
    said_by_.assign(graph.tensors.size(), -1);
    for (const Tensor& tensor : graph.tensors) {
      layouts_.push_back(Layout::replicated(static_cast<int>(tensor.shape.size())));
    }
    for (const Layer& layer : graph.layers) factor_axes_.emplace_back(layer.factors.size());
  }

  std::vector<Layout> find() {
    for (LayerId l = 0; l < num_layers(); ++l) read_strategy(l);
    for (LayerId l = 0; l < num_layers(); ++l) learn_factors(l);
    for (const Node& node : graph_.nodes) follow(node);
    return std::move(layouts_);
  }

 private:
  LayerId num_layers() const { return static_cast<LayerId>(graph_.layers.size()); }

  void read_strategy(LayerId l) {
    if (!strategies_[l]) return;
    const StrategySpec& strategy = *strategies_[l]->spec;
    for (size_t i = 0; i < strategy.cuts.size(); ++i) {
      const TensorId t = graph_.layers[l].inputs[i];
      if (graph_.tensors[t].kind != TensorKind::parameter) continue;
      // Axes are assigned starting with the slowest.
      Layout layout{assignments(mesh_, strategy.cuts[i], 1).front(), {}};
      if (said_by_[t] < 0) {
        said_by_[t] = l;
        layouts_[t] = std::move(layout);
      } else if (layouts_[t] != layout) {
        differs(l, i);
      }
    }
  }

  void differs(LayerId l, size_t i) {
    const TensorId t = graph_.layers[l].inputs[i];
    const LayerId first = said_by_[t];
    const StrategySpec& strategy = *strategies_[l]->spec;
    Ints before;
    for (const Axes& axes : layouts_[t].dims) before.push_back(mesh_.ways(axes));
    errors_.push_back({spec_.position(fmt::format("{}[{}]", strategy.path, i)), strategy.path,
                       fmt::format("{} cuts {} as {}, but {}, which shares it, cuts it as {}", graph_.layers[l].name,
                                   graph_.tensors[t].name, format_list(strategy.cuts[i]), graph_.layers[first].name,
                                   format_list(before)),
                       fmt::format("write {} here, or {} there", format_list(before), format_list(strategy.cuts[i]))});
  }

  // Derives how the factors of a layer are cut from the parameters whose cuts are known. One of them may be a parameter
  // that the layer shares with another layer.
  void learn_factors(LayerId l) {
    const Layer& layer = graph_.layers[l];
    for (size_t i = 0; i < layer.inputs.size(); ++i) {
      if (said_by_[layer.inputs[i]] < 0) continue;
      const Layout& layout = layouts_[layer.inputs[i]];
      for (size_t d = 0; d < layout.dims.size(); ++d) {
        const int factor = factor_of(layer.input_rules[i][d], layer.factors);
        if (factor >= 0 && factor_axes_[l][factor].empty()) factor_axes_[l][factor] = layout.dims[d];
      }
    }
  }

  void follow(const Node& node) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const TensorId t = node.inputs[i];
      const TensorKind kind = graph_.tensors[t].kind;
      if ((kind != TensorKind::parameter && kind != TensorKind::state) || said_by_[t] >= 0) continue;
      said_by_[t] = node.layer;
      for (size_t d = 0; d < layouts_[t].dims.size(); ++d) {
        const int factor = factor_of(node.rule.inputs[i][d], graph_.layers[node.layer].factors);
        if (factor >= 0) layouts_[t].dims[d] = factor_axes_[node.layer][factor];
      }
    }
  }

  // Returns the factor that is cut if the dim is cut; -1: none. Sizes are those of one rank, so even a dim of size 1
  // may be a shard of a larger dim.
  static int factor_of(const DimRule& dim, const std::vector<Factor>& factors) {
    const int factor = cut_factor(dim, factors);
    return factor >= 0 || dim.empty() ? factor : dim.front();
  }

  const Graph& graph_;
  const std::vector<std::optional<LayerStrategy>>& strategies_;
  const JobSpec& spec_;
  const Mesh& mesh_;
  std::vector<Diagnostic>& errors_;
  std::vector<Layout> layouts_;
  std::vector<LayerId> said_by_;  // the first layer that decides; -1: none yet
  std::vector<FactorAxes> factor_axes_;
};

}  // namespace

std::vector<Layout> hybrid_layouts(const Graph& graph, const std::vector<std::optional<LayerStrategy>>& strategies,
                                   const JobSpec& spec, const Mesh& mesh, std::vector<Diagnostic>& errors) {
  return HybridLayouts(graph, strategies, spec, mesh, errors).find();
}

}  // namespace trainctl
