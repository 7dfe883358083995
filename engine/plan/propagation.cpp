// Sweeps over the layers, forwards and backwards, until nothing changes: each layer takes the cheapest of its
// candidates given its neighbours. Of equally cheap ones the first wins, and following a neighbour comes before
// data parallel.
#include "engine/plan/propagation.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/text.h"
#include "engine/plan/candidates.h"
#include "engine/plan/links.h"
#include "engine/plan/redistribution.h"
#include "engine/plan/traffic.h"

namespace trainctl {
namespace {

constexpr int kMaxSweeps = 6;
constexpr size_t kMaxAssignments = 24;

class Propagation {
 public:
  Propagation(const Graph& graph, const std::vector<LayerFacts>& facts,
              const std::vector<std::optional<LayerStrategy>>& strategies, const CostModel& cost, Plan& plan)
      : graph_(graph),
        facts_(facts),
        strategies_(strategies),
        cost_(cost),
        plan_(plan),
        links_(find_links(graph)),
        traffic_(graph, plan.mesh, cost, plan.micro_batches) {}

  // Coordinate descent stops when no single layer can gain, so it starts twice: from the neighbours of the user's
  // layers outwards, and from data parallel everywhere else.
  void choose() {
    descend(false);
    const double following = traffic_.total();
    const std::vector<LayerPlan> found = plan_.layers;
    descend(true);
    if (traffic_.total() < following * (1 - 1e-9)) return;
    plan_.layers = found;
  }

  void explain(LayerId l) {
    LayerPlan& chosen = plan_.layers[l];
    const bool is_data_parallel = chosen.factor_axes == data_parallel(l);
    const Model model = model_of(l, is_data_parallel);
    if (model.layer >= 0) {
      chosen.choice = Choice::propagated;
      chosen.reason = fmt::format("{} {}, {}", model.is_consumer ? "suits" : "follows", graph_.layers[model.layer].name,
                                  input_moves(l));
    } else if (is_data_parallel) {
      chosen.choice = Choice::data_parallel;
      chosen.reason = data_parallel_reason(plan_.mesh, graph_.layers[l], facts_[l]);
    } else {
      chosen.choice = Choice::propagated;
      chosen.reason = "the cheapest between its neighbours, " + input_moves(l);
    }
    explain_size(l, chosen);
  }

 private:
  void descend(bool from_data_parallel) {
    for (LayerId l = 0; l < num_layers(); ++l) {
      traffic_.unset(l);
      plan_.layers[l].factor_axes.clear();
    }
    for (LayerId l = 0; l < num_layers(); ++l) {
      if (strategies_[l]) take(l, assignments(plan_.mesh, strategies_[l]->factor_ways, 1).front());
      if (!strategies_[l] && from_data_parallel) take(l, data_parallel(l));
    }
    bool changed = true;
    for (int sweep = 0; sweep < kMaxSweeps && changed; ++sweep) {
      changed = false;
      for (LayerId i = 0; i < num_layers(); ++i) changed |= improve(sweep % 2 == 0 ? i : num_layers() - 1 - i);
    }
  }

  bool is_chosen(LayerId l) const { return plan_.layers[l].factor_axes.size() == graph_.layers[l].factors.size(); }
  LayerId num_layers() const { return static_cast<LayerId>(graph_.layers.size()); }
  FactorAxes data_parallel(LayerId l) const { return data_parallel_axes(plan_.mesh, graph_.layers[l], facts_[l]); }

  void take(LayerId l, const FactorAxes& axes) {
    plan_.layers[l].factor_axes = axes;
    traffic_.set(l, axes);
  }

  Layout made(const Link& link) const {
    const std::vector<Axes>& axes = plan_.layers[link.from].factor_axes;
    Layout layout = rule_layout(link.made, graph_.layers[link.from].factors, axes);
    if (!link.from_rule.outputs.empty()) layout.partial = partial_axes(link.from_rule, link.output, axes);
    return layout;
  }
  Layout read(const Link& link) const {
    return rule_layout(link.read, graph_.layers[link.to].factors, plan_.layers[link.to].factor_axes);
  }
  Following after_producer(const Link& link) const {
    return follow(plan_.mesh, graph_.layers[link.to], facts_[link.to], link.read, made(link));
  }
  Following before_consumer(const Link& link) const {
    return follow(plan_.mesh, graph_.layers[link.from], facts_[link.from], link.made, read(link));
  }

  bool improve(LayerId l) {
    const FactorAxes before = plan_.layers[l].factor_axes;
    const std::vector<FactorAxes> choices = candidates(l);
    size_t best = 0;
    double best_seconds = 0;
    for (size_t c = 0; c < choices.size(); ++c) {
      if (choices.size() == 1) break;
      traffic_.set(l, choices[c]);
      const double seconds = traffic_.around(l);
      if (c > 0 && seconds >= best_seconds * (1 - 1e-9)) continue;
      best = c;
      best_seconds = seconds;
    }
    take(l, choices[best]);
    return choices[best] != before;
  }

  std::vector<FactorAxes> candidates(LayerId l) const {
    std::vector<FactorAxes> choices;
    const auto add = [&choices](FactorAxes axes) {
      if (std::find(choices.begin(), choices.end(), axes) == choices.end()) choices.push_back(std::move(axes));
    };
    if (strategies_[l]) {
      const std::vector<int64_t>& ways = strategies_[l]->factor_ways;
      const auto add_nearest = [&](const FactorAxes& wish) {
        for (FactorAxes& axes : nearest_assignment(plan_.mesh, ways, wish)) add(std::move(axes));
      };
      for (const Link& link : links_.in[l]) {
        if (is_chosen(link.from)) add_nearest(after_producer(link).axes);
      }
      for (const Link& link : links_.out[l]) {
        if (is_chosen(link.to)) add_nearest(before_consumer(link).axes);
      }
      for (FactorAxes& axes : assignments(plan_.mesh, ways, kMaxAssignments)) add(std::move(axes));
      return choices;
    }
    bool just_follows = links_.passes_through[l];
    for (const Link& link : links_.in[l]) {
      if (!is_chosen(link.from)) continue;
      Following following = after_producer(link);
      just_follows = just_follows && following.whole && !made(link).is_partial() &&
                     without_inner_sums(facts_[l].inner, following.axes) == following.axes;
      add(std::move(following.axes));
    }
    if (just_follows && !choices.empty()) return choices;
    const size_t followed = choices.size();
    for (size_t c = 0; c < followed; ++c) add(without_inner_sums(facts_[l].inner, choices[c]));
    for (size_t c = 0; c < followed; ++c) add(without_contractions(graph_.layers[l], choices[c]));
    for (const Link& link : links_.out[l]) {
      if (is_chosen(link.to)) add(before_consumer(link).axes);
    }
    add(data_parallel(l));
    return choices;
  }

  // The neighbour whose layout the layer adopted. A data parallel layer next to a data parallel one follows
  // neither.
  struct Model {
    LayerId layer = -1;
    bool is_consumer = false;
  };
  Model model_of(LayerId l, bool is_data_parallel) const {
    const FactorAxes& axes = plan_.layers[l].factor_axes;
    for (const Link& link : links_.in[l]) {
      const FactorAxes followed = after_producer(link).axes;
      const bool same = followed == axes || without_inner_sums(facts_[l].inner, followed) == axes ||
                        without_contractions(graph_.layers[l], followed) == axes;
      const bool idle = is_data_parallel && plan_.layers[link.from].choice == Choice::data_parallel;
      if (same && !idle) return {link.from, false};
    }
    for (const Link& link : links_.out[l]) {
      if (before_consumer(link).axes == axes && (!is_data_parallel || strategies_[link.to])) return {link.to, true};
    }
    return {};
  }

  std::string input_moves(LayerId l) const {
    std::vector<std::string> moves;
    for (const Link& link : links_.in[l]) {
      const Tensor& tensor = graph_.tensors[link.tensor];
      for (const RedistributionStep& step :
           plan_redistribution(plan_.mesh, tensor.shape, tensor.dtype, made(link), read(link), cost_)) {
        moves.push_back(fmt::format("{} of {}", to_string(step.kind), tensor.name));
      }
    }
    return moves.empty() ? "no redistribution" : "after " + join(moves);
  }

  // What was given up because a size is not divisible, and which sizes would be.
  void explain_size(LayerId l, LayerPlan& chosen) const {
    const Layer& layer = graph_.layers[l];
    const auto near = [](int64_t size, int64_t want) {
      const int64_t below = size / want * want;
      return below > 0 ? fmt::format("{} or {}", below, below + want) : std::to_string(want);
    };
    chosen.would_be = chosen.advice = "";
    const int batch = facts_[l].batch_factor;
    if (chosen.choice == Choice::data_parallel && batch >= 0 && facts_[l].why_not[batch].empty()) {
      const int64_t rows = layer.factors[batch].size;
      const int have = plan_.mesh.ways(chosen.factor_axes[batch]);
      const int want = plan_.mesh.size();
      if (have == want) return;
      chosen.would_be = fmt::format("{} does not divide {}", want, rows);
      chosen.advice = fmt::format("the {} rows of a micro-batch are {} on {} ranks; {} would be cut {} ways", rows,
                                  cut_text(have), want, near(rows, want), want);
      return;
    }
    for (const Link& link : links_.in[l]) {
      const Layout arriving = made(link);
      for (size_t d = 0; d < link.read.size(); ++d) {
        const int f = cut_factor(link.read[d], layer.factors);
        const int want = plan_.mesh.ways(arriving.dims[d]);
        if (f < 0 || !facts_[l].why_not[f].empty() || layer.factors[f].size % want == 0) continue;
        const int64_t size = layer.factors[f].size;
        chosen.would_be = fmt::format("{} does not divide {}", want, size);
        chosen.advice = fmt::format("dim {} of {} is {}, which cannot be cut {} ways; {} could", d,
                                    graph_.tensors[link.tensor].name, size, want, near(size, want));
        return;
      }
    }
  }

  const Graph& graph_;
  const std::vector<LayerFacts>& facts_;
  const std::vector<std::optional<LayerStrategy>>& strategies_;
  const CostModel& cost_;
  Plan& plan_;
  const Links links_;
  Traffic traffic_;
};

}  // namespace

void propagate(const Graph& graph, const std::vector<LayerFacts>& facts,
               const std::vector<std::optional<LayerStrategy>>& strategies, const CostModel& cost, Plan& plan) {
  Propagation propagation(graph, facts, strategies, cost, plan);
  propagation.choose();
  for (LayerId l = 0; l < static_cast<LayerId>(graph.layers.size()); ++l) {
    if (plan.layers[l].choice != Choice::user) propagation.explain(l);
  }
}

std::string strategy_reason(const StrategySpec& strategy, const SourcePos& pos) {
  std::vector<std::string> inputs;
  for (const Ints& cuts : strategy.cuts) inputs.push_back(format_list(cuts));
  std::string text = fmt::format("strategy [{}]", join(inputs));
  if (pos.known()) text += fmt::format(" at {}:{}", pos.file, pos.line);
  return text;
}

}  // namespace trainctl
