// Sweeps over the units, forwards and backwards, until nothing changes: each takes the cheapest of its candidates
// given its neighbours, and takes along those that only follow it. Of equally cheap candidates the first wins, and
// following a neighbour comes before data parallel. Equal units whose surroundings have equal cuts make the same
// choice, so only one of them compares its candidates.
#include "engine/plan/axes/propagation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "engine/base/text.h"
#include "engine/plan/axes/candidates.h"
#include "engine/plan/axes/links.h"
#include "engine/plan/axes/surroundings.h"
#include "engine/plan/axes/unit_axes.h"
#include "engine/plan/numbers_text.h"
#include "engine/plan/traffic/redistribution.h"
#include "engine/plan/traffic/traffic.h"

namespace trainctl {
namespace {

constexpr int kMaxSweeps = 6;
constexpr size_t kMaxAssignments = 24;

class Propagation {
 public:
  Propagation(UnitAxes& chosen, MeshTraffic& on_mesh)
      : chosen_(chosen),
        traffic_(on_mesh.traffic),
        surroundings_(find_surroundings(on_mesh.kinds, chosen.units, chosen.links, chosen.strategies, traffic_)),
        numbers_(chosen.axes.size()),
        changed_at_(chosen.axes.size()),
        settled_at_(chosen.axes.size()) {}

  // Coordinate descent stops at an assignment that no change of a single unit improves, which need not be the best one.
  // So the search runs from several starts and keeps the best result.
  void choose() {
    std::vector<FactorAxes> best;
    double least = 0;
    for (const Start start : {Start::neighbours, Start::following, Start::data_parallel}) {
      if (!begin(start)) continue;
      descend();
      const double seconds = traffic_.total();
      if (!best.empty() && seconds >= least * (1 - 1e-9)) continue;
      best = chosen_.axes;
      least = seconds;
    }
    chosen_.axes = std::move(best);
  }

 private:
  enum class Start : uint8_t {
    neighbours,     ///< from the user's layers outwards
    following,      ///< every other unit follows its input
    data_parallel,  ///< every other unit is data parallel
  };

  /// Sets the initial axes. Returns false if an earlier start had the same ones.
  bool begin(Start start) {
    for (int u = 0; u < chosen_.num_units(); ++u) {
      traffic_.unset(u);
      chosen_.axes[u].clear();
    }
    for (int u = 0; u < chosen_.num_units(); ++u) {
      const auto& strategy = chosen_.strategies[chosen_.units.all[u].layer];
      if (strategy && !chosen_.units.all[u].finishes())
        take(u, strategy->axes.empty() ? strategy->with_exchange(chosen_.mesh, first_assignment(strategy->own_ways()))
                                       : strategy->axes);
      if (!strategy && start == Start::data_parallel) take(u, chosen_.data_parallel(u));
    }
    for (int u = 0; u < chosen_.num_units() && start == Start::following; ++u) {
      if (!chosen_.is_chosen(u)) take(u, candidates(u).front());
    }
    if (std::find(begins_.begin(), begins_.end(), chosen_.axes) != begins_.end()) return false;
    begins_.push_back(chosen_.axes);
    return true;
  }

  const FactorAxes& first_assignment(const std::vector<int64_t>& ways) {
    const auto [known, fresh] = first_assignments_.try_emplace(ways);
    if (fresh) known->second = assignments(chosen_.mesh, ways, 1).front();
    return known->second;
  }

  void descend() {
    for (int u = 0; u < chosen_.num_units(); ++u) {
      note_change(u);
      settled_at_[u] = 0;
      changed_at_[u] = ++clock_;
    }
    bool changed = true;
    for (int sweep = 0; sweep < kMaxSweeps && changed; ++sweep) {
      changed = false;
      for (int i = 0; i < chosen_.num_units(); ++i)
        changed |= improve(sweep % 2 == 0 ? i : chosen_.num_units() - 1 - i);
    }
  }

  void take(int u, const FactorAxes& axes) {
    chosen_.axes[u] = axes;
    traffic_.set(u, axes);
  }

  /// Gives the unit group[0] these axes. The other units of the group follow it: they adopt its choice where they can.
  void take_along(const std::vector<int>& group, const FactorAxes& axes) {
    take(group[0], axes);
    for (size_t i = 1; i < group.size(); ++i) {
      const Link& link = chosen_.links.in[group[i]][0];
      if (!chosen_.is_chosen(link.from)) continue;
      Following following = chosen_.after_producer(link);
      if (following.whole) take(group[i], following.axes);
    }
  }

  /// Chooses the axes of a unit again. Returns true if they changed. Skips a unit that did not change the last time if
  /// nothing around it has changed since.
  bool improve(int u) {
    const Surroundings& around = surroundings_[u];
    if (std::all_of(around.units.begin(), around.units.end(), [&](int v) { return changed_at_[v] <= settled_at_[u]; }))
      return false;
    std::string key;
    put_number(key, around.kind);
    for (int v : around.units) put_number(key, numbers_[v]);
    const auto [known, fresh] = known_choices_.try_emplace(std::move(key));
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
    const auto [number, fresh] = number_of_.try_emplace(chosen_.axes[u], static_cast<int>(lists_.size()));
    if (fresh) lists_.push_back(chosen_.axes[u]);
    if (numbers_[u] == number->second) return false;
    numbers_[u] = number->second;
    changed_at_[u] = ++clock_;
    return true;
  }

  /// Computes the cost of each candidate of the unit, and takes the cheapest.
  void choose(int u, const std::vector<int>& group) {
    const std::vector<FactorAxes> choices = candidates(u);
    if (choices.size() == 1) {
      take(u, choices[0]);
      return;
    }
    std::vector<FactorAxes> others;
    for (int follower : group) others.push_back(chosen_.axes[follower]);
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
    chosen_.axes[u] = axes;
    chosen_.is_chosen(u) ? traffic_.set(u, axes) : traffic_.unset(u);
  }

  /// Returns the axes that would let the unit's readers read its output without redistribution. For a reader that only
  /// follows the unit, the readers of that follower are taken instead.
  std::vector<FactorAxes> suiting(int u) const {
    std::vector<FactorAxes> found;
    for (const Link& link : chosen_.links.out[u]) {
      const bool follows = chosen_.links.only_follows[link.to] && chosen_.strategy(link.to) == nullptr;
      if (follows) {
        for (const FactorAxes& axes : suiting(link.to)) {
          const Layout read = rule_layout(link.read, chosen_.layer(link.to).factors, axes);
          found.push_back(follow(chosen_.mesh, chosen_.layer(u), chosen_.facts(u), link.made, read).axes);
        }
      } else if (chosen_.is_chosen(link.to)) {
        found.push_back(chosen_.before_consumer(link).axes);
      }
    }
    return found;
  }

  /// Returns the axes that are considered for a unit: those that a strategy permits, or that its neighbors suggest, or
  /// data parallel.
  std::vector<FactorAxes> candidates(int u) const {
    std::vector<FactorAxes> choices;
    const auto add = [&choices](FactorAxes axes) {
      if (std::find(choices.begin(), choices.end(), axes) == choices.end()) choices.push_back(std::move(axes));
    };
    if (const LayerStrategy* given = chosen_.strategy(u)) {
      if (!given->axes.empty()) return {given->axes};
      const std::vector<int64_t> ways = given->own_ways();
      const auto add_given = [&](FactorAxes axes) { add(given->with_exchange(chosen_.mesh, std::move(axes))); };
      const auto add_nearest = [&](const FactorAxes& wish) {
        for (FactorAxes& axes : nearest_assignment(chosen_.mesh, ways, wish)) add_given(std::move(axes));
      };
      for (const Link& link : chosen_.links.in[u]) {
        if (chosen_.is_chosen(link.from)) add_nearest(chosen_.after_producer(link).axes);
      }
      for (const Link& link : chosen_.links.out[u]) {
        if (chosen_.is_chosen(link.to)) add_nearest(chosen_.before_consumer(link).axes);
      }
      for (FactorAxes& axes : assignments(chosen_.mesh, ways, kMaxAssignments)) add_given(std::move(axes));
      return choices;
    }
    bool just_follows = chosen_.links.passes_through[u];
    for (const Link& link : chosen_.links.in[u]) {
      if (!chosen_.is_chosen(link.from)) continue;
      Following following = chosen_.after_producer(link);
      just_follows = just_follows && following.whole && !chosen_.made(link).is_partial() &&
                     without_inner_sums(chosen_.facts(u).inner, following.axes) == following.axes;
      add(std::move(following.axes));
    }
    if (just_follows && !choices.empty()) return choices;
    const size_t followed = choices.size();
    for (size_t c = 0; c < followed; ++c) add(without_inner_sums(chosen_.facts(u).inner, choices[c]));
    for (size_t c = 0; c < followed; ++c) add(without_contractions(chosen_.layer(u), choices[c]));
    for (FactorAxes& axes : suiting(u)) add(std::move(axes));
    add(chosen_.data_parallel(u));
    return choices;
  }

  UnitAxes& chosen_;
  Traffic& traffic_;
  const std::vector<Surroundings> surroundings_;
  std::vector<std::vector<FactorAxes>> begins_;
  std::map<std::vector<int64_t>, FactorAxes> first_assignments_;  // by ways to cut each factor
  std::vector<int> numbers_;                                      // by unit: a number of its axes
  std::map<FactorAxes, int> number_of_;
  std::vector<FactorAxes> lists_;  // by number
  int64_t clock_ = 0;
  std::vector<int64_t> changed_at_, settled_at_;                     // by unit
  std::unordered_map<std::string, std::vector<int>> known_choices_;  // by kind and surroundings: the numbers of a group
};

/// Everything that propagation depends on besides the graph and the machine.
std::string key_of(const std::vector<std::optional<LayerStrategy>>& strategies, const Plan& plan) {
  std::string key;
  put_number(key, plan.mesh.size());
  put_number(key, plan.micro_batches);
  for (const std::optional<LayerStrategy>& strategy : strategies) {
    put_number(key, strategy.has_value());
    if (strategy) put_numbers(key, strategy->factor_ways);
    if (strategy)
      for (const Axes& axes : strategy->axes) put_numbers(key, axes);
  }
  return key;
}

}  // namespace

void propagate(const Graph& graph, const std::vector<std::optional<LayerStrategy>>& strategies, const CostModel& cost,
               PlanMemo& memo, Plan& plan) {
  UnitAxes chosen(graph, *memo.facts, strategies, plan.mesh);
  std::vector<FactorAxes>& known = memo.axes[key_of(strategies, plan)];
  if (known.empty()) {
    std::unique_ptr<MeshTraffic>& on_mesh = memo.traffic[plan.mesh.size()];
    if (!on_mesh) on_mesh = std::make_unique<MeshTraffic>(graph, *memo.facts, plan.mesh, cost, plan.micro_batches);
    Propagation(chosen, *on_mesh).choose();
    known = chosen.axes;
  } else {
    chosen.axes = known;
  }
  for (LayerId l = 0; l < static_cast<LayerId>(graph.layers.size()); ++l)
    plan.layers[l].factor_axes = chosen.axes[chosen.units.of_layer[l]];
  for (LayerId l = 0; l < static_cast<LayerId>(graph.layers.size()); ++l) {
    if (plan.layers[l].choice != Choice::user && memo.explains) explain_axes(chosen, cost, l, plan);
    place_finish(chosen, cost, l, memo.explains, plan);
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
