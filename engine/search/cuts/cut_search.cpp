// Searches for the cuts of all layers with the least sum of kernels and redistributions. This is an assignment problem
// (engine/solver):
//
//   variable   a set of units with equal cuts: the same unit of all repeated blocks
//   value      a candidate: one assignment of mesh axes to the factors of the layer to which these units belong
//   cost       a table per unit for its kernels and memory, and a table per tensor for its redistributions
//
// A unit (engine/plan/axes/units.h) is a layer, or a part of one, whose nodes have the same cuts. If a layer has nodes
// that follow its contraction and need the complete result, such as the bias of a dense layer, these nodes "finish" the
// layer and are a second unit (Unit::finishes). If the contraction is cut, each rank has only a partial sum, and after
// the sum over ranks the finishing unit can have other cuts than the rest of the layer.
//
// A setting is a choice of values for some variables.
#include "engine/search/cuts/cut_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "engine/base/text.h"
#include "engine/ops/op_def.h"
#include "engine/search/cuts/unit_memory.h"
#include "engine/solver/assignment.h"

namespace trainctl {
namespace {

/// With CutAim::least_redistribution, seconds of kernels and of gradient sums are multiplied by this small weight, so
/// that they only decide between cuts with equal redistribution.
constexpr double kBesideRedistribution = 1e-4;
/// If the units that make and read a tensor have more settings than this, its cost is estimated by pairs of units.
constexpr size_t kMostSettings = 512;

/// least_cuts looks at no more than this many assignments for each of the cuts that it should find.
constexpr size_t kMostAlike = 10;

/// True if a node of the layer is a product of matrices or a convolution, or consists mostly of such products.
bool has_products(const Graph& graph, LayerId layer) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    const KernelDef& kernel = get_op(node.op).kernel;
    return node.layer == layer && (kernel.is_product || kernel.has_products);
  });
}

/// Returns the part of the time of gradient sums that counts. If the machine can overlap them with the backward pass,
/// only a quarter is assumed not to be overlapped.
double once_per_step_part(const Machine& machine) { return machine.overlaps ? 0.25 : 1; }

class CutSearch {
 public:
  /// Creates the variables, each with its candidates: all that `split` and `effort` allow, with these exceptions:
  ///  - A layer with a strategy (`strategies`, by layer) has only the candidates that cut each factor in the strategy's
  ///    ways. The unit that finishes the layer is not restricted.
  ///  - With CutAim::tensor_parallel, all other units of layers with products have only the candidates in which the
  ///    last run of axes of `split` cuts a factor other than the batch, unless there are none. For this aim, CutChoices
  ///    passes a split whose last run consists of axes within a host, because tensor parallelism needs fast links.
  CutSearch(CutSpace& space, const AxisSplit& split, Effort effort,
            const std::vector<std::optional<LayerStrategy>>& strategies, CutAim aim)
      : network_(space.network),
        mesh_(space.mesh),
        strategies_(space.strategies),
        beside_redistribution_(aim == CutAim::least_redistribution ? kBesideRedistribution : 1),
        traffic_(space.traffic) {
    const CutNetwork& network = network_;
    const Mesh& mesh = mesh_;
    std::map<std::pair<std::string, bool>, int> known;  // variables, by pattern of the layer and Unit::finishes
    for (const Unit& unit : network.units.all) {
      const size_t l = static_cast<size_t>(unit.layer);
      const auto [variable, fresh] =
          known.try_emplace({network.patterns[l], unit.finishes()}, static_cast<int>(candidates_.size()));
      variable_of_.push_back(variable->second);
      if (!fresh) continue;
      CutCandidates all = cut_candidates(mesh, network.graph.layers[l], network.facts[l], split, effort);
      if (strategies[l] && !unit.finishes()) {
        all = with_strategy(mesh, std::move(all), strategies[l]->factor_ways);
      } else if (aim == CutAim::tensor_parallel && has_products(network.graph, unit.layer)) {
        all = cutting_no_batch(std::move(all), network.facts[l].batch_factor, split.back());
      }
      candidates_.push_back(std::move(all));
    }
  }

  /// Adds the cost tables of all units and tensors.
  void add_tables(double seconds_per_byte, const BytesPerWeight& bytes) {
    for (const CutCandidates& candidates : candidates_) {
      std::vector<Traffic::Coded>& coded = coded_.emplace_back();
      for (const FactorAxes& axes : candidates) coded.push_back(traffic_.coded(axes));
    }
    const std::vector<UnitMemory> memory =
        seconds_per_byte > 0 ? memory_by_unit(network_, bytes) : std::vector<UnitMemory>(num_units());
    for (int u = 0; u < static_cast<int>(num_units()); ++u)
      add_unit(u, memory[static_cast<size_t>(u)], seconds_per_byte);
    for (TensorId t = 0; t < static_cast<TensorId>(network_.graph.tensors.size()); ++t) add_tensor(t);
  }

  FoundCuts solve(const AxisSplit& split) {
    bool exact = true;
    const Assignment best = least_cost_assignment(sizes(), tables_, exact);
    return cuts_as(split, best, exact);
  }

  /// Returns up to `most` cuts in the order of increasing cost. Cuts that differ only in axes, or in layers that a
  /// strategy fixes, count as one.
  std::vector<FoundCuts> solve_all(const AxisSplit& split, size_t most) {
    const std::vector<int> units = units_free();
    std::vector<bool> reported(candidates_.size(), false);
    for (int unit : units) reported[static_cast<size_t>(variable_of(unit))] = true;
    std::vector<FoundCuts> all;
    std::set<std::vector<std::vector<Ints>>> known;
    bool exact = true;
    size_t seen = 0;
    least_cost_assignments(sizes(), tables_, reported, exact, [&](const Assignment& one) {
      if (known.insert(reported_cuts(units, one)).second) all.push_back(cuts_as(split, one, exact));
      return all.size() < most && ++seen < kMostAlike * most;
    });
    return all;
  }

  /// All layers of the same pattern as this one can then only be cut in this way. The units that finish them stay free.
  void fix(LayerId layer, FactorAxes axes) {
    const int unit = network_.units.of_layer[static_cast<size_t>(layer)];
    candidates_[static_cast<size_t>(variable_of(unit))] = {std::move(axes)};
  }

  /// Adds these cuts, one per unit, to the candidates, so that they can be compared with others. They need not belong
  /// to the search space.
  void include(const std::vector<FactorAxes>& of_unit) {
    for (int u = 0; u < static_cast<int>(num_units()); ++u)
      add_once(candidates_[static_cast<size_t>(variable_of(u))], of_unit[static_cast<size_t>(u)]);
  }

  /// Returns for each variable the cheapest other candidate while all others stay, with its bytes.
  std::vector<CutAlternative> next_best(const std::vector<FactorAxes>& of_unit) {
    const std::vector<int> setting = setting_of(of_unit);
    const std::vector<std::vector<double>> sums = sums_of_changes(setting);
    std::vector<CutAlternative> all;
    for (int unit : reported_units()) {
      const size_t v = static_cast<size_t>(variable_of(unit)), own = static_cast<size_t>(setting[v]);
      std::vector<CutAlternative> others = others_of(unit, own, sums[v]);
      const auto best = std::min_element(others.begin(), others.end(),
                                         [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
      if (best == others.end()) continue;
      const auto place = std::find(candidates_[v].begin(), candidates_[v].end(), best->axes) - candidates_[v].begin();
      best->bytes = sent_with(static_cast<int>(v), static_cast<int>(place)) -
                    sent_with(static_cast<int>(v), static_cast<int>(own));
      all.push_back(std::move(*best));
    }
    return all;
  }

  /// Returns for each variable all other candidates while the other variables keep their values, the cheapest first.
  std::vector<CutAlternative> others(const std::vector<FactorAxes>& of_unit) {
    const std::vector<int> setting = setting_of(of_unit);
    const std::vector<std::vector<double>> sums = sums_of_changes(setting);
    std::vector<CutAlternative> all;
    for (int unit : reported_units()) {
      const size_t v = static_cast<size_t>(variable_of(unit));
      for (CutAlternative& other : others_of(unit, static_cast<size_t>(setting[v]), sums[v]))
        all.push_back(std::move(other));
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
    return all;
  }

 private:
  std::vector<int> sizes() const {
    std::vector<int> sizes;
    for (const CutCandidates& candidates : candidates_) sizes.push_back(static_cast<int>(candidates.size()));
    return sizes;
  }

  /// Converts an assignment of candidates to variables into the axes of each unit.
  FoundCuts cuts_as(const AxisSplit& split, const Assignment& assignment, bool exact) {
    FoundCuts found{.split = split};
    found.exact = exact;
    found.seconds = assignment.cost;
    for (int u = 0; u < static_cast<int>(num_units()); ++u) {
      const int value = assignment.values[static_cast<size_t>(variable_of(u))];
      choose(u, value);
      found.of_unit.push_back(candidate(u, value));
    }
    for (int unit : network_.units.of_layer)
      found.of_layer.push_back(candidate(unit, assignment.values[static_cast<size_t>(variable_of(unit))]));
    found.layer_seconds = layer_seconds();
    return found;
  }

  /// Returns the units of reported_units() whose layers have no strategy and are not the loss.
  std::vector<int> units_free() const {
    std::vector<int> units = reported_units();
    std::erase_if(units, [&](int unit) {
      const size_t l = static_cast<size_t>(network_.units.all[static_cast<size_t>(unit)].layer);
      return strategies_[l].has_value() || network_.facts[l].is_loss;
    });
    return units;
  }

  std::vector<std::vector<Ints>> reported_cuts(const std::vector<int>& units, const Assignment& assignment) const {
    std::vector<std::vector<Ints>> reported;
    for (int unit : units) {
      const Unit& of = network_.units.all[static_cast<size_t>(unit)];
      reported.push_back(cuts_of(mesh_, network_.graph.layers[static_cast<size_t>(of.layer)],
                                 candidate(unit, assignment.values[static_cast<size_t>(variable_of(unit))])));
    }
    return reported;
  }

  size_t num_units() const { return network_.units.all.size(); }
  int variable_of(int unit) const { return variable_of_[static_cast<size_t>(unit)]; }
  const CutCandidates& candidates_of(int unit) const { return candidates_[static_cast<size_t>(variable_of(unit))]; }
  const FactorAxes& candidate(int unit, int index) const { return candidates_of(unit)[static_cast<size_t>(index)]; }
  double times(int unit) const {
    return network_.times[static_cast<size_t>(network_.units.all[static_cast<size_t>(unit)].layer)];
  }
  void choose(int unit, int index) {
    traffic_.set(unit, coded_[static_cast<size_t>(variable_of(unit))][static_cast<size_t>(index)]);
  }

  /// Adds a cost table to the sum. Tables over the same variables are merged into one.
  void add(CostTable table) {
    const auto [known, fresh] = table_of_.try_emplace(table.variables, tables_.size());
    if (fresh) {
      tables_.push_back(std::move(table));
      return;
    }
    std::vector<double>& sums = tables_[known->second].values;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += table.values[i];
  }

  /// Adds the cost table of one unit: the seconds of its kernels and the price of its memory, for each of its
  /// candidates.
  void add_unit(int unit, const UnitMemory& memory, double seconds_per_byte) {
    CostTable table{{variable_of(unit)}, {}};
    for (int c = 0; c < static_cast<int>(candidates_of(unit).size()); ++c) {
      choose(unit, c);
      double seconds = traffic_.unit_seconds(unit);
      for (const UnitMemory::Part& part : memory.parts) {
        double bytes = part.bytes;
        for (int f : part.factors) bytes /= mesh_.ways(candidate(unit, c)[static_cast<size_t>(f)]);
        seconds += seconds_per_byte * (part.has_own_buffer ? in_arena(bytes) : bytes);
      }
      table.values.push_back(beside_redistribution_ * times(unit) * seconds);
    }
    add(std::move(table));
  }

  /// Candidates of a variable that give the tensor the same layout; one candidate represents its class.
  struct Classes {
    int variable = -1;
    std::vector<int> of_candidate;
    std::vector<std::vector<Traffic::UseLayout>> layouts;  // by class
  };

  /// For each variable that uses the tensor: which of its candidates give the tensor the same layouts. Costs are
  /// computed once for each of these classes.
  std::vector<Classes> classes(TensorId tensor, const std::vector<int>& units) {
    std::map<int, std::vector<int>> by_variable;
    for (int unit : units) by_variable[variable_of(unit)].push_back(unit);
    std::vector<Classes> all;
    for (auto& [variable, of_variable] : by_variable) {
      Classes one{.variable = variable};
      std::map<std::vector<Traffic::UseLayout>, int> known;
      for (int c = 0; c < static_cast<int>(candidates_of(of_variable[0]).size()); ++c) {
        std::vector<Traffic::UseLayout> layouts;
        for (int unit : of_variable) {
          choose(unit, c);
          const std::vector<Traffic::UseLayout> own = traffic_.layouts_at(tensor, unit);
          layouts.insert(layouts.end(), own.begin(), own.end());
        }
        const auto [place, fresh] = known.try_emplace(layouts, static_cast<int>(one.layouts.size()));
        if (fresh) one.layouts.push_back(std::move(layouts));
        one.of_candidate.push_back(place->second);
      }
      all.push_back(std::move(one));
    }
    return all;
  }

  /// Costs of a tensor, by classes of these variables.
  struct Priced {
    std::vector<Classes> of_variable;
    std::vector<double> by_class;
  };

  /// Adds the cost tables of a tensor, also of a tensor within one unit, which may be produced as a partial sum and
  /// read as a whole. Equal tensors, such as those at the same position in repeated blocks, are priced once.
  void add_tensor(TensorId tensor) {
    const std::vector<int> units = traffic_.units_of(tensor);
    if (units.empty()) return;
    std::string key;
    traffic_.describe(tensor, variable_of_, key);
    const auto [known, fresh] = priced_.try_emplace(std::move(key));
    if (fresh) known->second = priced(tensor, classes(tensor, units));
    const double weight =
        network_.times_of(units) * (traffic_.moves_once_per_step(tensor) ? beside_redistribution_ : 1);
    for (const Priced& one : known->second) add_table(one.of_variable, one.by_class, weight);
  }

  std::vector<Priced> priced(TensorId tensor, std::vector<Classes> of_variable) {
    size_t settings = 1;
    for (const Classes& one : of_variable) settings *= std::min(one.layouts.size(), kMostSettings);
    if (settings > kMostSettings) return priced_in_pairs(tensor, of_variable);
    std::vector<double> by_class = seconds_of(tensor, of_variable);
    return {{std::move(of_variable), std::move(by_class)}};
  }

  /// Returns the seconds of a tensor for each combination of classes of these variables. All other units are left out.
  std::vector<double> seconds_of(TensorId tensor, const std::vector<Classes>& of_variable) {
    std::vector<double> by_class;
    std::vector<int> layouts(traffic_.num_uses(tensor), -1);
    count_classes(tensor, of_variable, 0, layouts, by_class);
    return by_class;
  }

  /// Estimates a tensor between many units: a cost per variable, and one more per pair. A move that several
  /// share counts for each of them.
  std::vector<Priced> priced_in_pairs(TensorId tensor, const std::vector<Classes>& of_variable) {
    std::vector<Priced> all;
    std::vector<std::vector<double>> alone;
    for (const Classes& one : of_variable) {
      alone.push_back(seconds_of(tensor, {one}));
      all.push_back({{one}, alone.back()});
    }
    for (size_t i = 0; i < of_variable.size(); ++i)
      for (size_t k = i + 1; k < of_variable.size(); ++k) {
        std::vector<double> both = seconds_of(tensor, {of_variable[i], of_variable[k]});
        for (size_t a = 0, at = 0; a < alone[i].size(); ++a)
          for (size_t b = 0; b < alone[k].size(); ++b, ++at) both[at] -= alone[i][a] + alone[k][b];
        all.push_back({{of_variable[i], of_variable[k]}, std::move(both)});
      }
    return all;
  }

  /// Adds a cost table over variables, given the costs by classes of their candidates. `weight` multiplies the costs.
  void add_table(const std::vector<Classes>& of_variable, const std::vector<double>& by_class, double weight) {
    if (std::all_of(by_class.begin(), by_class.end(), [](double seconds) { return seconds == 0; })) return;
    CostTable table;
    for (const Classes& one : of_variable) table.variables.push_back(one.variable);
    std::vector<int> setting(table.variables.size(), 0);
    for (;;) {
      size_t at = 0;
      for (size_t i = 0; i < setting.size(); ++i)
        at = at * of_variable[i].layouts.size() +
             static_cast<size_t>(of_variable[i].of_candidate[static_cast<size_t>(setting[i])]);
      table.values.push_back(weight * by_class[at]);
      size_t i = setting.size();
      while (i > 0 && ++setting[i - 1] == static_cast<int>(of_variable[i - 1].of_candidate.size())) setting[--i] = 0;
      if (i == 0) break;
    }
    add(std::move(table));
  }

  /// Steps through the classes of variable i and all later ones, and appends the seconds of each combination to
  /// `by_class`. `layouts` has the layout number of each use of the tensor so far.
  void count_classes(TensorId tensor, const std::vector<Classes>& of_variable, size_t i, std::vector<int>& layouts,
                     std::vector<double>& by_class) {
    if (i == of_variable.size()) {
      by_class.push_back(traffic_.tensor_seconds(tensor, layouts));
      return;
    }
    for (const std::vector<Traffic::UseLayout>& of_class : of_variable[i].layouts) {
      for (const Traffic::UseLayout& one : of_class) layouts[one.use] = one.layout;
      count_classes(tensor, of_variable, i + 1, layouts, by_class);
    }
  }

  std::vector<double> layer_seconds() {
    std::vector<double> seconds(network_.graph.layers.size(), 0);
    for (int u = 0; u < static_cast<int>(num_units()); ++u)
      seconds[static_cast<size_t>(network_.units.all[static_cast<size_t>(u)].layer)] += traffic_.unit_seconds(u);
    for (TensorId t = 0; t < static_cast<TensorId>(network_.graph.tensors.size()); ++t) {
      const std::vector<int> units = traffic_.units_of(t);
      if (!units.empty())
        seconds[static_cast<size_t>(network_.units.all[static_cast<size_t>(units[0])].layer)] +=
            traffic_.tensor_seconds(t);
    }
    return seconds;
  }

  std::vector<int> setting_of(const std::vector<FactorAxes>& of_unit) {
    std::vector<int> setting(candidates_.size(), 0);
    for (int u = 0; u < static_cast<int>(num_units()); ++u) {
      const CutCandidates& all = candidates_of(u);
      const int value =
          static_cast<int>(std::find(all.begin(), all.end(), of_unit[static_cast<size_t>(u)]) - all.begin());
      setting[static_cast<size_t>(variable_of(u))] = value;
      choose(u, value);
    }
    return setting;
  }

  /// Returns for each variable and each of its values the sum of all tables that contain the variable. The variable has
  /// this value, and all other variables have their values of `setting`.
  std::vector<std::vector<double>> sums_of_changes(const std::vector<int>& setting) const {
    std::vector<std::vector<double>> sums;
    for (const CutCandidates& candidates : candidates_) sums.emplace_back(candidates.size(), 0);
    for (const CostTable& table : tables_) {
      size_t stride = 1, chosen = 0;
      std::vector<size_t> strides(table.variables.size());
      for (size_t i = table.variables.size(); i-- > 0;) {
        const size_t v = static_cast<size_t>(table.variables[i]);
        strides[i] = stride;
        chosen += stride * static_cast<size_t>(setting[v]);
        stride *= candidates_[v].size();
      }
      for (size_t i = 0; i < table.variables.size(); ++i) {
        const size_t v = static_cast<size_t>(table.variables[i]);
        const size_t without = chosen - strides[i] * static_cast<size_t>(setting[v]);
        for (size_t c = 0; c < candidates_[v].size(); ++c) sums[v][c] += table.values[without + strides[i] * c];
      }
    }
    return sums;
  }

  /// Returns one unit of each variable, without the units that only finish a layer: users see cuts of layers.
  std::vector<int> reported_units() const {
    std::set<int> reported;
    std::vector<int> units;
    for (int unit : network_.units.of_layer)
      if (reported.insert(variable_of(unit)).second) units.push_back(unit);
    return units;
  }

  /// Returns the alternatives that a strategy distinguishes from the unit's own cuts.
  std::vector<CutAlternative> others_of(int unit, size_t own, const std::vector<double>& sums) const {
    const size_t l = static_cast<size_t>(network_.units.all[static_cast<size_t>(unit)].layer);
    const Layer& layer = network_.graph.layers[l];
    const CutCandidates& all = candidates_of(unit);
    const std::vector<Ints> own_cuts = cuts_of(mesh_, layer, all[own]);
    std::vector<CutAlternative> others;
    for (size_t c = 0; c < all.size(); ++c) {
      std::vector<Ints> cuts = cuts_of(mesh_, layer, all[c]);
      if (c != own && cuts != own_cuts)
        others.push_back({network_.patterns[l], std::move(cuts), sums[c] - sums[own], 0, all[c]});
    }
    return others;
  }

  /// Returns the bytes that a rank sends for all tensors that the variable's units make or read, if the variable has
  /// this value. The units stay set to this value after the call.
  double sent_with(int variable, int value) {
    for (int u = 0; u < static_cast<int>(num_units()); ++u)
      if (variable_of(u) == variable) choose(u, value);
    double bytes = 0;
    for (TensorId t = 0; t < static_cast<TensorId>(network_.graph.tensors.size()); ++t) {
      const std::vector<int> units = traffic_.units_of(t);
      if (std::any_of(units.begin(), units.end(), [&](int u) { return variable_of(u) == variable; }))
        bytes += network_.times_of(units) * traffic_.tensor_bytes(t);
    }
    return bytes;
  }

  const CutNetwork& network_;
  const Mesh& mesh_;
  const std::vector<std::optional<LayerStrategy>>& strategies_;
  const double beside_redistribution_;
  Traffic& traffic_;
  std::vector<int> variable_of_;                                 // by unit
  std::vector<CutCandidates> candidates_;                        // by variable
  std::vector<std::vector<Traffic::Coded>> coded_;               // the same
  std::unordered_map<std::string, std::vector<Priced>> priced_;  // tensors, by everything in which they differ
  std::vector<CostTable> tables_;
  std::map<std::vector<int>, size_t> table_of_;  // its index, by its variables
};

}  // namespace

CutSpace::CutSpace(const CutNetwork& of, const Mesh& on, Effort with, const CostModel& cost, int micro_batches,
                   std::vector<std::optional<LayerStrategy>> given)
    : network(of),
      mesh(on),
      effort(with),
      strategies(std::move(given)),
      traffic(of.graph, of.units, on, cost, micro_batches, once_per_step_part(cost.machine())) {}

FoundCuts find_cuts(CutSpace& space, const AxisSplit& split, CutAim aim, double seconds_per_byte,
                    const BytesPerWeight& bytes) {
  CutSearch search(space, split, space.effort, space.strategies, aim);
  search.add_tables(seconds_per_byte, bytes);
  return search.solve(split);
}

std::vector<FoundCuts> least_cuts(CutSpace& space, double seconds_per_byte, const BytesPerWeight& bytes, size_t most) {
  const AxisSplit per_axis = split_per_axis(space.mesh);
  CutSearch search(space, per_axis, Effort::high, space.strategies, CutAim::least_time);
  search.add_tables(seconds_per_byte, bytes);
  return search.solve_all(per_axis, most);
}

std::vector<CutAlternative> next_best_cuts(CutSpace& space, const FoundCuts& found) {
  CutSearch search(space, found.split, space.effort, space.strategies, CutAim::least_time);
  search.include(found.of_unit);
  search.add_tables(0, {});
  return search.next_best(found.of_unit);
}

std::vector<CutAlternative> other_cuts(CutSpace& space, const FoundCuts& found) {
  CutSearch search(space, found.split, space.effort, space.strategies, CutAim::least_time);
  search.include(found.of_unit);
  search.add_tables(0, {});
  return search.others(found.of_unit);
}

FoundCuts with_other(const CutNetwork& network, FoundCuts found, const CutAlternative& other) {
  for (size_t l = 0; l < network.patterns.size(); ++l) {
    if (network.patterns[l] != other.pattern) continue;
    found.of_layer[l] = other.axes;
    found.of_unit[static_cast<size_t>(network.units.of_layer[l])] = other.axes;
  }
  return found;
}

namespace {

/// Returns cuts in which each layer has the axes that `axes_of(layer, facts)` returns. Only the cuts of the units that
/// finish a layer are still chosen.
template <class AxesOf>
FoundCuts given_cuts(CutSpace& space, AxesOf axes_of) {
  const AxisSplit split = axis_splits(space.mesh, Effort::low)[0];
  CutSearch search(space, split, Effort::low, std::vector<std::optional<LayerStrategy>>(space.strategies.size()),
                   CutAim::least_time);
  for (LayerId l = 0; l < static_cast<LayerId>(space.network.graph.layers.size()); ++l)
    search.fix(
        l, axes_of(space.network.graph.layers[static_cast<size_t>(l)], space.network.facts[static_cast<size_t>(l)]));
  search.add_tables(0, {});
  return search.solve(split);
}

}  // namespace

FoundCuts data_parallel_cuts(CutSpace& space) {
  return given_cuts(
      space, [&](const Layer& layer, const LayerFacts& facts) { return data_parallel_axes(space.mesh, layer, facts); });
}

FoundCuts whole_cuts(CutSpace& space) {
  return given_cuts(space, [](const Layer& layer, const LayerFacts&) { return FactorAxes(layer.factors.size()); });
}

std::string reason_against(const CutAlternative& other) {
  std::vector<std::string> cuts;
  for (const Ints& of_input : other.cuts) cuts.push_back(format_list(of_input));
  const auto time = [](double seconds) {
    return seconds >= 1e-3 ? fmt::format("{:.2f} ms", 1e3 * seconds) : fmt::format("{:.1f} us", 1e6 * seconds);
  };
  const std::string bytes = format_bytes(std::llround(std::abs(other.bytes)));
  const bool faster = other.seconds >= 0, less = other.bytes > 0;
  std::string text = (faster ? "saves " : "takes ") + time(std::abs(other.seconds));
  if (faster && less) text += fmt::format(" and {} of traffic", bytes);
  text +=
      fmt::format(" {}per micro-batch {} [{}]", faster ? "" : "more ", faster ? "compared with" : "than", join(cuts));
  if (faster && !less && other.bytes != 0) text += fmt::format(", and sends {} more", bytes);
  if (!faster && other.bytes != 0) text += fmt::format(", and sends {} {}", bytes, less ? "less" : "more");
  return text;
}

}  // namespace trainctl
