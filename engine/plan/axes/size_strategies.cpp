// Turns parallel.data, tensor and context into cuts of each layer, and explains them in the report.
#include "engine/plan/axes/size_strategies.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "engine/base/layer_errors.h"
#include "engine/graph/contraction.h"
#include "engine/graph/row_dims.h"
#include "engine/ops/attention/key_exchange.h"
#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

/// A factor of a layer: the layer and the index of the factor in it.
using LayerFactor = std::pair<LayerId, int>;

/// Returns the factor that is cut if dim `dim` of a node's tensor is cut; -1: none.
int factor_of(const Graph& graph, const Node& node, const TensorRule& rule, int dim) {
  return dim < 0 ? -1
                 : cut_factor(rule[static_cast<size_t>(dim)], graph.layers[static_cast<size_t>(node.layer)].factors);
}

/// Classes of dims that must be cut in the same way: a factor of a layer, and the dims of tensors that layers share.
class DimClasses {
 public:
  /// Visits all operands of forward nodes. Factors of different layers that cut the same dim of a tensor get one class.
  explicit DimClasses(const Graph& graph) {
    std::map<std::pair<TensorId, size_t>, int> of_dims;
    const auto visit = [&](const Node& node, TensorId tensor, const TensorRule& rule) {
      for (size_t d = 0; d < rule.size(); ++d) {
        const int factor = factor_of(graph, node, rule, static_cast<int>(d));
        if (factor < 0) continue;
        const int own = number(LayerFactor{node.layer, factor});
        const auto [known, fresh] = of_dims.try_emplace({tensor, d}, own);
        if (!fresh) unite(known->second, own);
      }
    };
    for (const Node& node : graph.nodes) {
      if (node.phase != Phase::forward) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i) visit(node, node.inputs[i], node.rule.inputs[i]);
      for (size_t o = 0; o < node.outputs.size(); ++o) visit(node, node.outputs[o], node.rule.outputs[o]);
    }
  }

  /// Returns the class of a factor, or -1 if no tensor has the factor as a dim.
  int of(LayerId layer, int factor) const {
    const auto found = numbers_.find(LayerFactor{layer, factor});
    return found == numbers_.end() ? -1 : root(found->second);
  }

 private:
  int number(const LayerFactor& factor) {
    const auto [known, fresh] = numbers_.try_emplace(factor, static_cast<int>(parents_.size()));
    if (fresh) parents_.push_back(known->second);
    return known->second;
  }
  int root(int i) const {
    while (parents_[static_cast<size_t>(i)] != i) i = parents_[static_cast<size_t>(i)];
    return i;
  }
  void unite(int a, int b) { parents_[static_cast<size_t>(root(b))] = root(a); }

  std::map<LayerFactor, int> numbers_;
  std::vector<int> parents_;
};

/// A matrix product with a weight: the class of its output features (`made`), and the class of its input features, over
/// which it sums (`summed`).
struct WeightProduct {
  int made = -1, summed = -1;
  int64_t elements = 0;
};

/// Chooses the classes of dims that parallel.tensor cuts.
class TensorClasses {
 public:
  TensorClasses(const Graph& graph, const std::vector<LayerFacts>& facts, const std::vector<int>& rows, int64_t ways)
      : graph_(graph), facts_(facts), classes_(graph), ways_(ways) {
    find_products();
    exclude(rows);
    choose();
  }

  bool cuts(LayerId layer, int factor) const {
    const int of = classes_.of(layer, factor);
    return of >= 0 && chosen_.contains(of);
  }
  bool empty() const { return chosen_.empty(); }

  /// Calls `fail` for each factor of a chosen class whose size is not divisible by parallel.tensor.
  void check(const std::function<void(const Layer&, const Factor&)>& fail) const {
    for (size_t l = 0; l < graph_.layers.size(); ++l)
      for (size_t f = 0; f < graph_.layers[l].factors.size(); ++f) {
        const Factor& factor = graph_.layers[l].factors[f];
        if (cuts(static_cast<LayerId>(l), static_cast<int>(f)) && factor.size % ways_ != 0)
          fail(graph_.layers[l], factor);
      }
  }

 private:
  bool is_parameter(TensorId tensor) const {
    return graph_.tensors[static_cast<size_t>(tensor)].kind == TensorKind::parameter;
  }

  /// Finds the matrix products with weights, and the classes of each weight's dims.
  void find_products() {
    for (const Node& node : graph_.nodes) {
      if (node.phase != Phase::forward || !get_op(node.op).kernel.is_product) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (!is_parameter(node.inputs[i])) continue;
        WeightProduct product{.elements = num_elements(graph_.tensors[static_cast<size_t>(node.inputs[i])].shape)};
        for (const DimRule& dim : node.rule.inputs[i]) {
          const int factor = cut_factor(dim, graph_.layers[static_cast<size_t>(node.layer)].factors);
          if (factor < 0) continue;
          (is_contracted(node.rule, 0, factor) ? product.summed : product.made) = classes_.of(node.layer, factor);
        }
        products_.push_back(product);
      }
    }
  }

  /// Marks the classes that are not cut: classes that cannot be cut, the batch and the rows, and dims of parameters
  /// that are not factors of a matrix product, such as the parameters of norms and embedding tables.
  void exclude(const std::vector<int>& rows) {
    const auto add = [&](LayerId layer, int factor) {
      if (const int of = classes_.of(layer, factor); of >= 0) excluded_.insert(of);
    };
    std::vector<bool> has_product(graph_.layers.size());
    for (const Node& node : graph_.nodes)
      if (node.phase == Phase::forward && get_op(node.op).kernel.is_product)
        has_product[static_cast<size_t>(node.layer)] = true;
    for (const Node& node : graph_.nodes) {
      if (node.phase != Phase::forward) continue;
      const OpDef& op = get_op(node.op);
      const bool sums = op.inner_sum && op.inner_sum->block == nullptr;
      for (const int factor : node.rule.inner)
        if (sums && !facts_[static_cast<size_t>(node.layer)].is_loss) add(node.layer, factor);
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        add(node.layer, factor_of(graph_, node, node.rule.inputs[i],
                                  rows.empty() ? -1 : rows[static_cast<size_t>(node.inputs[i])]));
        if (!is_parameter(node.inputs[i]) || has_product[static_cast<size_t>(node.layer)]) continue;
        for (const DimRule& dim : node.rule.inputs[i]) {
          const int factor = cut_factor(dim, graph_.layers[static_cast<size_t>(node.layer)].factors);
          if (factor >= 0 && !is_contracted(node.rule, 0, factor)) add(node.layer, factor);
        }
      }
    }
    for (size_t l = 0; l < graph_.layers.size(); ++l) {
      const LayerFacts& facts = facts_[l];
      if (facts.batch_factor >= 0) add(static_cast<LayerId>(l), facts.batch_factor);
      for (size_t f = 0; f < facts.why_not.size(); ++f)
        if (!facts.why_not[f].empty()) add(static_cast<LayerId>(l), static_cast<int>(f));
    }
  }

  /// Chooses the classes to cut. If parallel.tensor does not divide the size of a class over which a product sums, the
  /// class is chosen nevertheless, so that check() reports an error. Any other class that is not divisible, such as the
  /// classes of a vocabulary, is left whole.
  void choose() {
    std::map<int, int64_t> elements;
    std::set<int> summed, odd;
    for (const WeightProduct& product : products_) {
      for (const int of : {product.made, product.summed})
        if (of >= 0 && !excluded_.contains(of)) elements[of] += product.elements;
      if (product.summed >= 0) summed.insert(product.summed);
    }
    for (size_t l = 0; l < graph_.layers.size(); ++l)
      for (size_t f = 0; f < graph_.layers[l].factors.size(); ++f)
        if (graph_.layers[l].factors[f].size % ways_ != 0)
          if (const int of = classes_.of(static_cast<LayerId>(l), static_cast<int>(f)); of >= 0) odd.insert(of);
    std::vector<std::pair<int64_t, int>> order;
    for (const auto& [of, count] : elements) order.emplace_back(-count, of);
    std::sort(order.begin(), order.end());
    for (const auto& [count, of] : order) {
      const bool free = std::all_of(products_.begin(), products_.end(), [&, c = of](const WeightProduct& p) {
        return !((p.made == c && chosen_.contains(p.summed)) || (p.summed == c && chosen_.contains(p.made)) ||
                 (p.made == c && p.summed == c));
      });
      if (free && (summed.contains(of) || !odd.contains(of))) chosen_.insert(of);
    }
  }

  const Graph& graph_;
  const std::vector<LayerFacts>& facts_;
  const DimClasses classes_;
  const int64_t ways_;
  std::vector<WeightProduct> products_;
  std::set<int> excluded_, chosen_;
};

class SizeStrategies {
 public:
  SizeStrategies(const Graph& graph, const std::vector<LayerFacts>& facts, const JobSpec& spec, const Mesh& mesh,
                 ContextMethod method)
      : graph_(graph),
        facts_(facts),
        spec_(spec),
        mesh_(mesh),
        method_(method),
        axes_(size_axes(mesh, spec.parallel)),
        rows_(row_dims(graph)) {}

  /// Adds the strategies that follow from data, tensor and context for layers that have none. Adds errors for sizes
  /// that no layer permits.
  void add(std::vector<std::optional<LayerStrategy>>& strategies, std::vector<Diagnostic>& errors) {
    const bool shares_rows = !axes_.context.empty();
    if (shares_rows && rows_.empty()) {
      errors.push_back({spec_.position("parallel.context"), "parallel.context",
                        "context cuts the rows of sequences, but the data are neither tokens [rows] nor vectors [rows, "
                        "features]",
                        "remove parallel.context, or use data instead"});
      return;
    }
    std::optional<TensorClasses> heads_and_features;
    if (!axes_.tensor.empty()) {
      heads_and_features.emplace(graph_, facts_, rows_, mesh_.ways(axes_.tensor));
      if (heads_and_features->empty())
        errors.push_back({spec_.position("parallel.tensor"), "parallel.tensor",
                          "no layer has heads or hidden features that can be cut", "remove parallel.tensor"});
      heads_and_features->check([&](const Layer& layer, const Factor& factor) {
        fail("parallel.tensor", layer, factor, "a dim has {} elements", mesh_.ways(axes_.tensor));
      });
    }
    std::vector<int> row_factor(graph_.layers.size(), -1), key_heads = row_factor;
    find_rows(row_factor, key_heads);
    for (size_t l = 0; l < graph_.layers.size(); ++l) {
      if (strategies[l]) continue;
      const Layer& layer = graph_.layers[l];
      LayerStrategy strategy{nullptr, std::vector<int64_t>(layer.factors.size(), 1),
                             std::vector<Axes>(layer.factors.size())};
      const auto cut = [&](const char* field, const char* what, int factor, const Axes& axes) {
        if (factor < 0 || axes.empty()) return;
        Axes& all = strategy.axes[static_cast<size_t>(factor)];
        all.insert(all.end(), axes.begin(), axes.end());
        check_cut(field, what, l, factor, mesh_.ways(all));
      };
      for (size_t f = 0; heads_and_features && f < layer.factors.size(); ++f)
        if (heads_and_features->cuts(static_cast<LayerId>(l), static_cast<int>(f))) strategy.axes[f] = axes_.tensor;
      cut("parallel.data", "a micro-batch has {} samples", facts_[l].batch_factor, axes_.data);
      const bool by_heads = shares_rows && key_heads[l] >= 0 && method_ == ContextMethod::ulysses;
      if (by_heads)
        cut("parallel.context_method", "ulysses exchanges rows for heads, of which there are {}", key_heads[l],
            axes_.context);
      else
        cut("parallel.context", "a sequence has {} rows", row_factor[l], axes_.context);
      for (size_t f = 0; f < layer.factors.size(); ++f) strategy.factor_ways[f] = mesh_.ways(strategy.axes[f]);
      const bool cuts =
          std::any_of(strategy.axes.begin(), strategy.axes.end(), [](const Axes& a) { return !a.empty(); });
      if (cuts) strategies[l] = std::move(strategy);
    }
    for (Diagnostic& error : errors_.take()) errors.push_back(std::move(error));
  }

 private:
  /// The factor of each layer's rows, and of the heads of keys in layers whose ranks exchange keys.
  void find_rows(std::vector<int>& row_factor, std::vector<int>& key_heads) const {
    for (const Node& node : graph_.nodes) {
      if (node.phase != Phase::forward || rows_.empty()) continue;
      int& of_layer = row_factor[static_cast<size_t>(node.layer)];
      for (size_t i = 0; i < node.inputs.size() && of_layer < 0; ++i)
        of_layer = factor_of(graph_, node, node.rule.inputs[i], rows_[static_cast<size_t>(node.inputs[i])]);
      if (node.attrs.flag(kExchangesKeys)) {
        const std::vector<Factor>& factors = graph_.layers[static_cast<size_t>(node.layer)].factors;
        key_heads[static_cast<size_t>(node.layer)] = cut_factor(node.rule.inputs[1][2], factors);
      }
    }
  }

  void check_cut(const char* field, const char* what, size_t layer, int factor, int64_t ways) {
    const std::string& why_not = facts_[layer].why_not[static_cast<size_t>(factor)];
    const Factor& of = graph_.layers[layer].factors[static_cast<size_t>(factor)];
    if (!why_not.empty()) {
      const char* text = is_method(field)
                             ? "ulysses exchanges rows for whole heads of keys and values, which cannot be "
                               "cut here: {}"
                             : "the dim cannot be cut: {}";
      errors_.add({spec_.position(field), field, fmt::format(fmt::runtime(text), why_not),
                   is_method(field) ? kNoHeads : fmt::format("set {}: 1, or a strategy of the layer", field)},
                  graph_.layers[layer].name);
    } else if (of.size % ways != 0) {
      fail(field, graph_.layers[layer], of, what, ways);
    }
  }

  void fail(const char* field, const Layer& layer, const Factor& factor, const char* what, int64_t ways) {
    const std::string size = factor.why_size.empty() ? fmt::format(fmt::runtime(what), factor.size) : factor.why_size;
    std::string next = fmt::format("use a number that divides {}", factor.size);
    if (is_method(field)) next = kNoHeads + (", or " + next);
    if (std::string_view(field) == "parallel.context")
      next += fmt::format(", or sequences of {} rows", (factor.size / ways + 1) * ways);
    errors_.add(
        {spec_.position(field), field, fmt::format("{}, which {} does not divide", size, ways), std::move(next)},
        layer.name);
  }

  static bool is_method(std::string_view field) { return field == "parallel.context_method"; }

  static constexpr const char* kNoHeads = "set context_method: gather or ring, which cut no heads";

  const Graph& graph_;
  const std::vector<LayerFacts>& facts_;
  const JobSpec& spec_;
  const Mesh& mesh_;
  const ContextMethod method_;
  const SizeAxes axes_;
  const std::vector<int> rows_;
  LayerErrors errors_;
};

}  // namespace

SizeAxes size_axes(const Mesh& mesh, const ParallelSpec& parallel) {
  SizeAxes sizes;
  std::vector<bool> taken(static_cast<size_t>(mesh.num_axes()));
  const auto take = [&](int ways, Axes& axes) {
    for (Axis axis = mesh.num_axes() - 1; axis >= 0 && ways > 1; --axis) {
      if (taken[static_cast<size_t>(axis)] || ways % mesh.axis_size(axis) != 0) continue;
      taken[static_cast<size_t>(axis)] = true;
      axes.insert(axes.begin(), axis);
      ways /= mesh.axis_size(axis);
    }
  };
  take(parallel.tensor, sizes.tensor);
  take(parallel.context, sizes.context);
  for (Axis axis = 0; axis < mesh.num_axes(); ++axis)
    if (!taken[static_cast<size_t>(axis)]) sizes.data.push_back(axis);
  return sizes;
}

void add_size_strategies(const Graph& graph, const std::vector<LayerFacts>& facts, const JobSpec& spec,
                         const Mesh& mesh, ContextMethod method, std::vector<std::optional<LayerStrategy>>& strategies,
                         std::vector<Diagnostic>& errors) {
  SizeStrategies(graph, facts, spec, mesh, method).add(strategies, errors);
}

std::string sizes_reason(const JobSpec& spec, const Mesh& mesh) {
  const SizeAxes axes = size_axes(mesh, spec.parallel);
  std::string text = fmt::format("data {} x tensor {} x context {}", mesh.ways(axes.data), mesh.ways(axes.tensor),
                                 mesh.ways(axes.context));
  for (const char* field : {"parallel.context", "parallel.tensor", "parallel.data"})
    if (const SourcePos pos = spec.position(field); pos.known())
      return text + fmt::format(" at {}:{}", pos.file, pos.line);
  return text;
}

}  // namespace trainctl
