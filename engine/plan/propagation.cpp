// Sweeps over the units, forwards and backwards, until nothing changes: each takes the cheapest of its candidates
// given its neighbours, and takes along those that only follow it. Of equally cheap candidates the first wins, and
// following a neighbour comes before data parallel. Units alike, whose surroundings are cut alike, choose alike: one of
// them weighs its candidates.
#include "engine/plan/propagation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "engine/base/text.h"
#include "engine/plan/candidates.h"
#include "engine/plan/links.h"
#include "engine/plan/numbers_text.h"
#include "engine/plan/redistribution.h"
#include "engine/plan/surroundings.h"
#include "engine/plan/traffic.h"
#include "engine/plan/units.h"

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
        units_(find_units(graph)),
        links_(find_links(graph, units_)),
        traffic_(graph, units_, plan.mesh, cost, plan.micro_batches),
        surroundings_(find_surroundings(graph, facts, units_, links_, strategies, traffic_)),
        axes_(units_.all.size()),
        numbers_(units_.all.size()),
        changed_at_(units_.all.size()),
        settled_at_(units_.all.size()) {}

  // Coordinate descent stops when no single unit can gain, so it starts more than once.
  void choose() {
    std::vector<FactorAxes> best;
    double least = 0;
    for (const Start start : {Start::neighbours, Start::following, Start::data_parallel}) {
      descend(start);
      const double seconds = traffic_.total();
      if (!best.empty() && seconds >= least * (1 - 1e-9)) continue;
      best = axes_;
      least = seconds;
    }
    axes_ = std::move(best);
    for (LayerId l = 0; l < num_layers(); ++l) plan_.layers[l].factor_axes = axes_[units_.of_layer[l]];
  }

  void explain(LayerId l) {
    LayerPlan& chosen = plan_.layers[l];
    const int u = units_.of_layer[l];
    const bool is_data_parallel = chosen.factor_axes == data_parallel(u);
    const Model model = model_of(u, is_data_parallel);
    if (model.unit >= 0) {
      chosen.choice = Choice::propagated;
      chosen.reason =
          fmt::format("{} {}, {}", model.is_consumer ? "suits" : "follows", name(model.unit), input_moves(u));
    } else if (is_data_parallel) {
      chosen.choice = Choice::data_parallel;
      chosen.reason = data_parallel_reason(plan_.mesh, graph_.layers[l], facts_[l]);
    } else {
      chosen.choice = Choice::propagated;
      chosen.reason = "the cheapest between its neighbours, " + input_moves(u);
    }
    explain_size(u, chosen);
  }

  /// Nodes that finish a layer in another layout than the rest of it.
  void place_finish(LayerId l) {
    const int u = units_.finish_of_layer[l];
    if (u < 0) return;
    const LayerPlan& chosen = plan_.layers[l];
    const std::vector<Factor>& factors = graph_.layers[l].factors;
    std::vector<std::string> names;
    for (NodeId n : units_.all[u].finishing) {
      const Node& node = graph_.nodes[n];
      NodePlan apart{.virtual_stage = chosen.virtual_stage};
      for (const TensorRule& rule : node.rule.inputs) apart.inputs.push_back(rule_layout(rule, factors, axes_[u]));
      for (const TensorRule& rule : node.rule.outputs) apart.outputs.push_back(rule_layout(rule, factors, axes_[u]));
      if (apart.outputs[0] == output_layout(graph_, plan_, node, 0)) continue;
      names.push_back(node.op);
      plan_.apart.emplace(node.outputs[0], std::move(apart));
    }
    std::vector<std::string> steps;
    for (const Link& link : links_.in[u])
      for (const RedistributionStep& step : way(link)) steps.emplace_back(to_string(step.kind));
    if (!names.empty()) plan_.layers[l].reason += fmt::format("; {} after {}", join(names), join(steps));
  }

 private:
  enum class Start : uint8_t {
    neighbours,     ///< from the user's layers outwards
    following,      ///< every other unit follows its input
    data_parallel,  ///< every other unit is data parallel
  };

  void descend(Start start) {
    for (int u = 0; u < num_units(); ++u) {
      traffic_.unset(u);
      axes_[u].clear();
    }
    for (int u = 0; u < num_units(); ++u) {
      const auto& strategy = strategies_[units_.all[u].layer];
      if (strategy && !units_.all[u].finishes()) take(u, assignments(plan_.mesh, strategy->factor_ways, 1).front());
      if (!strategy && start == Start::data_parallel) take(u, data_parallel(u));
    }
    for (int u = 0; u < num_units() && start == Start::following; ++u) {
      if (!is_chosen(u)) take(u, candidates(u).front());
    }
    for (int u = 0; u < num_units(); ++u) {
      note_change(u);
      settled_at_[u] = 0;
      changed_at_[u] = ++clock_;
    }
    bool changed = true;
    for (int sweep = 0; sweep < kMaxSweeps && changed; ++sweep) {
      changed = false;
      for (int i = 0; i < num_units(); ++i) changed |= improve(sweep % 2 == 0 ? i : num_units() - 1 - i);
    }
  }

  LayerId num_layers() const { return static_cast<LayerId>(graph_.layers.size()); }
  int num_units() const { return static_cast<int>(units_.all.size()); }
  const Layer& layer(int u) const { return graph_.layers[units_.all[u].layer]; }
  const LayerFacts& facts(int u) const { return facts_[units_.all[u].layer]; }
  const std::string& name(int u) const { return layer(u).name; }
  /// The user's strategy for a layer says nothing about what finishes it.
  const LayerStrategy* strategy(int u) const {
    const std::optional<LayerStrategy>& given = strategies_[units_.all[u].layer];
    return given && !units_.all[u].finishes() ? &*given : nullptr;
  }
  bool is_chosen(int u) const { return axes_[u].size() == layer(u).factors.size(); }
  FactorAxes data_parallel(int u) const { return data_parallel_axes(plan_.mesh, layer(u), facts(u)); }

  void take(int u, const FactorAxes& axes) {
    axes_[u] = axes;
    traffic_.set(u, axes);
  }

  Layout made(const Link& link) const {
    const FactorAxes& axes = axes_[link.from];
    Layout layout = rule_layout(link.made, layer(link.from).factors, axes);
    if (!link.from_rule.outputs.empty()) layout.partial = partial_axes(link.from_rule, link.output, axes);
    return layout;
  }
  Layout read(const Link& link) const { return rule_layout(link.read, layer(link.to).factors, axes_[link.to]); }
  Following after_producer(const Link& link) const {
    return follow(plan_.mesh, layer(link.to), facts(link.to), link.read, made(link));
  }
  Following before_consumer(const Link& link) const {
    return follow(plan_.mesh, layer(link.from), facts(link.from), link.made, read(link));
  }

  /// Its followers adopt the choice where they can.
  void take_along(const std::vector<int>& group, const FactorAxes& axes) {
    take(group[0], axes);
    for (size_t i = 1; i < group.size(); ++i) {
      const Link& link = links_.in[group[i]][0];
      if (!is_chosen(link.from)) continue;
      Following following = after_producer(link);
      if (following.whole) take(group[i], following.axes);
    }
  }

  /// True if the unit changed. It is left out if it changed nothing the last time, and nothing around it has changed
  /// since.
  bool improve(int u) {
    const Surroundings& around = surroundings_[u];
    if (std::all_of(around.units.begin(), around.units.end(), [&](int v) { return changed_at_[v] <= settled_at_[u]; }))
      return false;
    std::string key;
    put_number(key, around.kind);
    for (int v : around.units) put_number(key, numbers_[v]);
    const auto [known, fresh] = chosen_.try_emplace(std::move(key));
    if (fresh) {
      choose(u, around.group);
    } else {
      for (size_t i = 0; i < around.group.size(); ++i) restore(around.group[i], lists_[known->second[i]]);
    }
    const int before = numbers_[u];
    bool changed = false;
    for (int v : around.group) changed |= note_change(v);
    if (fresh)
      for (int v : around.group) known->second.push_back(numbers_[v]);
    if (!changed) settled_at_[u] = clock_;
    return numbers_[u] != before;
  }

  bool note_change(int u) {
    const auto [number, fresh] = number_of_.try_emplace(axes_[u], static_cast<int>(lists_.size()));
    if (fresh) lists_.push_back(axes_[u]);
    if (numbers_[u] == number->second) return false;
    numbers_[u] = number->second;
    changed_at_[u] = ++clock_;
    return true;
  }

  /// Weighs the unit's candidates.
  void choose(int u, const std::vector<int>& group) {
    const std::vector<FactorAxes> choices = candidates(u);
    if (choices.size() == 1) {
      take(u, choices[0]);
      return;
    }
    std::vector<FactorAxes> others;
    for (int follower : group) others.push_back(axes_[follower]);
    const auto try_choice = [&](const FactorAxes& axes) {
      for (size_t i = 1; i < group.size(); ++i) restore(group[i], others[i]);
      take_along(group, axes);
    };
    size_t best = 0;
    double best_seconds = 0;
    for (size_t c = 0; c < choices.size(); ++c) {
      try_choice(choices[c]);
      const double seconds = traffic_.around(group);
      if (c > 0 && seconds >= best_seconds * (1 - 1e-9)) continue;
      best = c;
      best_seconds = seconds;
    }
    try_choice(choices[best]);
  }

  void restore(int u, const FactorAxes& axes) {
    axes_[u] = axes;
    is_chosen(u) ? traffic_.set(u, axes) : traffic_.unset(u);
  }

  /// The axes that suit the readers of the unit, those of its followers instead of these.
  std::vector<FactorAxes> suiting(int u) const {
    std::vector<FactorAxes> found;
    for (const Link& link : links_.out[u]) {
      const bool follows = links_.only_follows[link.to] && strategy(link.to) == nullptr;
      if (follows) {
        for (const FactorAxes& axes : suiting(link.to)) {
          const Layout read = rule_layout(link.read, layer(link.to).factors, axes);
          found.push_back(follow(plan_.mesh, layer(u), facts(u), link.made, read).axes);
        }
      } else if (is_chosen(link.to)) {
        found.push_back(before_consumer(link).axes);
      }
    }
    return found;
  }

  std::vector<FactorAxes> candidates(int u) const {
    std::vector<FactorAxes> choices;
    const auto add = [&choices](FactorAxes axes) {
      if (std::find(choices.begin(), choices.end(), axes) == choices.end()) choices.push_back(std::move(axes));
    };
    if (const LayerStrategy* given = strategy(u)) {
      const std::vector<int64_t>& ways = given->factor_ways;
      const auto add_nearest = [&](const FactorAxes& wish) {
        for (FactorAxes& axes : nearest_assignment(plan_.mesh, ways, wish)) add(std::move(axes));
      };
      for (const Link& link : links_.in[u]) {
        if (is_chosen(link.from)) add_nearest(after_producer(link).axes);
      }
      for (const Link& link : links_.out[u]) {
        if (is_chosen(link.to)) add_nearest(before_consumer(link).axes);
      }
      for (FactorAxes& axes : assignments(plan_.mesh, ways, kMaxAssignments)) add(std::move(axes));
      return choices;
    }
    bool just_follows = links_.passes_through[u];
    for (const Link& link : links_.in[u]) {
      if (!is_chosen(link.from)) continue;
      Following following = after_producer(link);
      just_follows = just_follows && following.whole && !made(link).is_partial() &&
                     without_inner_sums(facts(u).inner, following.axes) == following.axes;
      add(std::move(following.axes));
    }
    if (just_follows && !choices.empty()) return choices;
    const size_t followed = choices.size();
    for (size_t c = 0; c < followed; ++c) add(without_inner_sums(facts(u).inner, choices[c]));
    for (size_t c = 0; c < followed; ++c) add(without_contractions(layer(u), choices[c]));
    for (FactorAxes& axes : suiting(u)) add(std::move(axes));
    add(data_parallel(u));
    return choices;
  }

  // The neighbour whose layout the unit adopted. A data parallel layer next to a data parallel one follows neither.
  struct Model {
    int unit = -1;
    bool is_consumer = false;
  };
  Model model_of(int u, bool is_data_parallel) const {
    const FactorAxes& axes = axes_[u];
    for (const Link& link : links_.in[u]) {
      const FactorAxes followed = after_producer(link).axes;
      const bool same = followed == axes || without_inner_sums(facts(u).inner, followed) == axes ||
                        without_contractions(layer(u), followed) == axes;
      const bool idle = is_data_parallel && plan_.layers[units_.all[link.from].layer].choice == Choice::data_parallel;
      if (same && !idle) return {link.from, false};
    }
    for (const Link& link : links_.out[u]) {
      if (units_.all[link.to].layer == units_.all[u].layer) continue;  // what finishes it
      if (before_consumer(link).axes == axes && (!is_data_parallel || strategy(link.to) != nullptr))
        return {link.to, true};
    }
    return {};
  }

  std::vector<RedistributionStep> way(const Link& link) const {
    const Tensor& tensor = graph_.tensors[link.tensor];
    return plan_redistribution(plan_.mesh, tensor.shape, tensor.dtype, made(link), read(link), cost_);
  }

  std::string input_moves(int u) const {
    std::vector<std::string> moves;
    for (const Link& link : links_.in[u])
      for (const RedistributionStep& step : way(link))
        moves.push_back(fmt::format("{} of {}", to_string(step.kind), graph_.tensors[link.tensor].name));
    return moves.empty() ? "no redistribution" : "after " + join(moves);
  }

  // What was given up because a size is not divisible, and which sizes would be.
  void explain_size(int u, LayerPlan& chosen) const {
    const Layer& layer = this->layer(u);
    const LayerFacts& facts = this->facts(u);
    const auto near = [](int64_t size, int64_t want) {
      const int64_t below = size / want * want;
      return below > 0 ? fmt::format("{} or {}", below, below + want) : std::to_string(want);
    };
    chosen.would_be = chosen.advice = "";
    const int batch = facts.batch_factor;
    if (chosen.choice == Choice::data_parallel && batch >= 0 && facts.why_not[batch].empty()) {
      const int64_t rows = layer.factors[batch].size;
      const int have = plan_.mesh.ways(chosen.factor_axes[batch]);
      const int want = plan_.mesh.size();
      if (have == want) return;
      chosen.would_be = fmt::format("{} does not divide {}", want, rows);
      chosen.advice = fmt::format("the {} rows of a micro-batch are {} on {} ranks; {} would be cut {} ways", rows,
                                  cut_text(have), want, near(rows, want), want);
      return;
    }
    for (const Link& link : links_.in[u]) {
      const Layout arriving = made(link);
      for (size_t d = 0; d < link.read.size(); ++d) {
        const int f = cut_factor(link.read[d], layer.factors);
        const int want = plan_.mesh.ways(arriving.dims[d]);
        if (f < 0 || !facts.why_not[f].empty() || layer.factors[f].size % want == 0) continue;
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
  const Units units_;
  const Links links_;
  Traffic traffic_;
  const std::vector<Surroundings> surroundings_;
  std::vector<FactorAxes> axes_;  // by unit; empty: not chosen yet
  std::vector<int> numbers_;      // by unit: equal axes, equal numbers
  std::map<FactorAxes, int> number_of_;
  std::vector<FactorAxes> lists_;  // by number
  int64_t clock_ = 0;
  std::vector<int64_t> changed_at_, settled_at_;              // by unit
  std::unordered_map<std::string, std::vector<int>> chosen_;  // by kind and surroundings: the numbers of a group
};

}  // namespace

void propagate(const Graph& graph, const std::vector<LayerFacts>& facts,
               const std::vector<std::optional<LayerStrategy>>& strategies, const CostModel& cost, Plan& plan) {
  Propagation propagation(graph, facts, strategies, cost, plan);
  propagation.choose();
  for (LayerId l = 0; l < static_cast<LayerId>(graph.layers.size()); ++l) {
    if (plan.layers[l].choice != Choice::user) propagation.explain(l);
    propagation.place_finish(l);
  }
}

std::string strategy_reason(const StrategySpec& strategy, const SourcePos& pos) {
  std::vector<std::string> inputs;
  for (const Ints& cuts : strategy.cuts) inputs.push_back(format_list(cuts));
  if (!strategy.reason.empty()) return strategy.reason;
  std::string text = fmt::format("strategy [{}]", join(inputs));
  if (pos.known()) text += fmt::format(" at {}:{}", pos.file, pos.line);
  return text;
}

}  // namespace trainctl
