#include "engine/search/cut_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "engine/base/text.h"
#include "engine/ops/op_def.h"
#include "engine/plan/plan.h"
#include "engine/plan/traffic.h"
#include "engine/search/least_sum.h"

namespace trainctl {
namespace {

using Candidates = std::vector<FactorAxes>;

/// What seconds of kernels and of sums of gradients count where the least redistribution is wanted.
constexpr double kBesideRedistribution = 1e-4;
/// A tensor between units that may have more settings together is priced by pairs of them.
constexpr size_t kMostSettings = 512;

void add_once(Candidates& all, FactorAxes axes) {
  if (std::find(all.begin(), all.end(), axes) == all.end()) all.push_back(std::move(axes));
}

/// Assigns each run to a factor, or to none.
class Spread {
 public:
  Spread(const Mesh& mesh, const Layer& layer, const LayerFacts& facts, const AxisSplit& split, Effort effort)
      : mesh_(mesh), layer_(layer), facts_(facts), split_(split), any_(effort == Effort::high || split.size() == 1) {
    axes_.resize(layer.factors.size());
  }

  Candidates all() {
    place(0);
    return std::move(found_);
  }

 private:
  bool may_cut(int factor) const {
    return facts_.why_not[static_cast<size_t>(factor)].empty() &&
           layer_.factors[static_cast<size_t>(factor)].size % mesh_.ways(axes_[static_cast<size_t>(factor)]) == 0;
  }

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
  Candidates found_;
};

/// Sums of gradients run beside the backward pass where a machine can do both.
double once_a_step_part(const Machine& machine) { return machine.overlaps ? 0.25 : 1; }

bool has_ways(const Mesh& mesh, const FactorAxes& axes, const std::vector<int64_t>& ways) {
  for (size_t f = 0; f < axes.size(); ++f)
    if (mesh.ways(axes[f]) != ways[f]) return false;
  return true;
}

Candidates with_strategy(const Mesh& mesh, Candidates all, const std::vector<int64_t>& ways) {
  constexpr size_t kMost = 24;
  Candidates fitting;
  for (FactorAxes& axes : all)
    if (has_ways(mesh, axes, ways)) fitting.push_back(std::move(axes));
  return fitting.empty() ? assignments(mesh, ways, kMost) : fitting;
}

bool has_products(const Graph& graph, LayerId layer) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [&](const Node& node) { return node.layer == layer && get_op(node.op).kernel.is_product; });
}

/// Those in which the run cuts something else than the batch; all, if there are none.
Candidates cutting_no_batch(Candidates all, int batch_factor, const Axes& run) {
  Candidates kept;
  for (const FactorAxes& axes : all)
    for (int f = 0; f < static_cast<int>(axes.size()); ++f)
      if (f != batch_factor && std::search(axes[static_cast<size_t>(f)].begin(), axes[static_cast<size_t>(f)].end(), run.begin(), run.end()) != axes[static_cast<size_t>(f)].end()) {
        kept.push_back(axes);
        break;
      }
  return kept.empty() ? all : kept;
}

/// Bytes of the tensors that a unit makes and its layer's backward pass, or another's, reads; and of its parameters.
struct Held {
  struct Part {
    double bytes = 0;
    std::vector<int> factors;  // that cut it
  };
  std::vector<Part> parts;
};

std::vector<int> factors_of(const TensorRule& rule, const std::vector<Factor>& factors) {
  std::vector<int> cut;
  for (const DimRule& dim : rule)
    if (const int f = cut_factor(dim, factors); f >= 0) cut.push_back(f);
  return cut;
}

bool is_kept(const Graph& graph, TensorId tensor, const std::vector<std::vector<NodeId>>& consumers) {
  if (graph.tensors[static_cast<size_t>(tensor)].kind != TensorKind::activation) return false;
  return std::any_of(consumers[static_cast<size_t>(tensor)].begin(), consumers[static_cast<size_t>(tensor)].end(),
                     [&](NodeId n) { return graph.nodes[static_cast<size_t>(n)].phase == Phase::backward; });
}

std::vector<std::vector<NodeId>> consumers_of(const Graph& graph) {
  std::vector<std::vector<NodeId>> consumers(graph.tensors.size());
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes.size()); ++n)
    for (TensorId t : graph.nodes[static_cast<size_t>(n)].inputs) consumers[static_cast<size_t>(t)].push_back(n);
  return consumers;
}

std::vector<Held> held_by_unit(const CutNetwork& network, double bytes_per_weight) {
  const Graph& graph = network.graph;
  const auto consumers = consumers_of(graph);
  std::vector<Held> held(network.units.all.size());
  std::set<TensorId> counted;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.phase != Phase::forward) continue;
    const std::vector<Factor>& factors = graph.layers[static_cast<size_t>(node.layer)].factors;
    Held& mine = held[static_cast<size_t>(network.units.of_node[n])];
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const Tensor& tensor = graph.tensors[static_cast<size_t>(node.outputs[o])];
      if (is_kept(graph, node.outputs[o], consumers))
        mine.parts.push_back({static_cast<double>(bytes_of({tensor.shape, tensor.dtype})), factors_of(node.rule.outputs[o], factors)});
    }
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Tensor& tensor = graph.tensors[static_cast<size_t>(node.inputs[i])];
      if (tensor.kind == TensorKind::parameter && counted.insert(node.inputs[i]).second)
        mine.parts.push_back({bytes_per_weight * static_cast<double>(num_elements(tensor.shape)), factors_of(node.rule.inputs[i], factors)});
    }
  }
  return held;
}

class CutSearch {
 public:
  CutSearch(CutSpace& space, const AxisSplit& split, Effort effort, const std::vector<std::optional<LayerStrategy>>& strategies, CutAim aim)
      : network_(space.network),
        mesh_(space.mesh),
        beside_redistribution_(aim == CutAim::least_redistribution ? kBesideRedistribution : 1),
        traffic_(space.traffic) {
    const CutNetwork& network = network_;
    const Mesh& mesh = mesh_;
    std::map<std::pair<std::string, bool>, int> known;
    for (const Unit& unit : network.units.all) {
      const size_t l = static_cast<size_t>(unit.layer);
      const auto [variable, fresh] = known.try_emplace({network.patterns[l], unit.finishes()}, static_cast<int>(candidates_.size()));
      variable_of_.push_back(variable->second);
      if (!fresh) continue;
      Candidates all = Spread(mesh, network.graph.layers[l], network.facts[l], split, effort).all();
      if (strategies[l] && !unit.finishes()) {
        all = with_strategy(mesh, std::move(all), strategies[l]->factor_ways);
      } else if (aim == CutAim::tensor_parallel && has_products(network.graph, unit.layer)) {
        all = cutting_no_batch(std::move(all), network.facts[l].batch_factor, split.back());
      }
      candidates_.push_back(std::move(all));
    }
  }

  void add_tables(double seconds_per_byte, double bytes_per_weight) {
    const std::vector<Held> held = seconds_per_byte > 0 ? held_by_unit(network_, bytes_per_weight) : std::vector<Held>(num_units());
    for (int u = 0; u < static_cast<int>(num_units()); ++u) add_unit(u, held[static_cast<size_t>(u)], seconds_per_byte);
    for (TensorId t = 0; t < static_cast<TensorId>(network_.graph.tensors.size()); ++t) add_tensor(t);
  }

  FoundCuts solve(const AxisSplit& split) {
    std::vector<int> sizes;
    for (const Candidates& candidates : candidates_) sizes.push_back(static_cast<int>(candidates.size()));
    FoundCuts found{.split = split};
    const LeastSum least = least_sum(sizes, tables_, found.exact);
    found.seconds = least.value;
    for (int u = 0; u < static_cast<int>(num_units()); ++u) {
      const int value = least.setting[static_cast<size_t>(variable_of(u))];
      choose(u, value);
      found.of_unit.push_back(candidate(u, value));
    }
    for (int unit : network_.units.of_layer)
      found.of_layer.push_back(candidates_of(unit)[static_cast<size_t>(least.setting[static_cast<size_t>(variable_of(unit))])]);
    found.layer_seconds = layer_seconds();
    return found;
  }

  /// Cuts that may be compared with others of the space, which they need not be of.
  void include(const std::vector<FactorAxes>& of_unit) {
    for (int u = 0; u < static_cast<int>(num_units()); ++u) add_once(candidates_[static_cast<size_t>(variable_of(u))], of_unit[static_cast<size_t>(u)]);
  }

  /// What each other candidate of a variable costs while all others stay.
  std::vector<CutAlternative> next_best(const std::vector<FactorAxes>& of_unit) {
    std::vector<int> setting(candidates_.size(), 0);
    for (int u = 0; u < static_cast<int>(num_units()); ++u) {
      const Candidates& all = candidates_of(u);
      const int value = static_cast<int>(std::find(all.begin(), all.end(), of_unit[static_cast<size_t>(u)]) - all.begin());
      setting[static_cast<size_t>(variable_of(u))] = value;
      choose(u, value);
    }
    return next_best(setting);
  }

 private:
  size_t num_units() const { return network_.units.all.size(); }
  int variable_of(int unit) const { return variable_of_[static_cast<size_t>(unit)]; }
  const Candidates& candidates_of(int unit) const { return candidates_[static_cast<size_t>(variable_of(unit))]; }
  const FactorAxes& candidate(int unit, int index) const { return candidates_of(unit)[static_cast<size_t>(index)]; }
  double times(int unit) const { return network_.times[static_cast<size_t>(network_.units.all[static_cast<size_t>(unit)].layer)]; }
  void choose(int unit, int index) { traffic_.set(unit, candidate(unit, index)); }

  void add_unit(int unit, const Held& held, double seconds_per_byte) {
    CostTable table{{variable_of(unit)}, {}};
    for (int c = 0; c < static_cast<int>(candidates_of(unit).size()); ++c) {
      choose(unit, c);
      double seconds = traffic_.unit_seconds(unit);
      for (const Held::Part& part : held.parts) {
        double bytes = part.bytes;
        for (int f : part.factors) bytes /= mesh_.ways(candidate(unit, c)[static_cast<size_t>(f)]);
        seconds += seconds_per_byte * bytes;
      }
      table.values.push_back(beside_redistribution_ * times(unit) * seconds);
    }
    tables_.push_back(std::move(table));
  }

  /// Candidates of a variable in which the tensor lies alike: one of them tells for all.
  struct Classes {
    int variable = -1;
    std::vector<int> units;  // that the tensor is between
    std::vector<int> of_candidate;
    std::vector<int> first;  // by class
  };

  std::vector<Classes> classes(TensorId tensor, const std::vector<int>& units) {
    std::map<int, std::vector<int>> by_variable;
    for (int unit : units) by_variable[variable_of(unit)].push_back(unit);
    std::vector<Classes> all;
    for (auto& [variable, of_variable] : by_variable) {
      Classes one{.variable = variable, .units = std::move(of_variable)};
      std::map<std::vector<uint64_t>, int> known;
      for (int c = 0; c < static_cast<int>(candidates_of(one.units[0]).size()); ++c) {
        std::vector<uint64_t> layouts;
        for (int unit : one.units) {
          choose(unit, c);
          const std::vector<uint64_t> own = traffic_.layouts_at(tensor, unit);
          layouts.insert(layouts.end(), own.begin(), own.end());
        }
        const auto [place, fresh] = known.try_emplace(std::move(layouts), static_cast<int>(one.first.size()));
        if (fresh) one.first.push_back(c);
        one.of_candidate.push_back(place->second);
      }
      all.push_back(std::move(one));
    }
    return all;
  }

  /// Also of a tensor within one unit: it may be made as a sum and read as a whole.
  void add_tensor(TensorId tensor) {
    const std::vector<int> units = traffic_.units_of(tensor);
    if (units.empty()) return;
    const std::vector<Classes> of_variable = classes(tensor, units);
    const double weight = network_.times_of(units) * (traffic_.moves_once_a_step(tensor) ? beside_redistribution_ : 1);
    size_t settings = 1;
    for (const Classes& one : of_variable) settings *= std::min(one.first.size(), kMostSettings);
    for (const Classes& one : of_variable)
      for (int unit : one.units) traffic_.unset(unit);
    if (settings <= kMostSettings) {
      add_table(of_variable, seconds_of(tensor, of_variable), weight);
    } else {
      add_pairs(tensor, of_variable, weight);
    }
  }

  /// Seconds by classes of these variables, all other units left out.
  std::vector<double> seconds_of(TensorId tensor, const std::vector<Classes>& of_variable) {
    std::vector<double> by_class;
    count_classes(tensor, of_variable, 0, by_class);
    for (const Classes& one : of_variable)
      for (int unit : one.units) traffic_.unset(unit);
    return by_class;
  }

  /// Of a tensor between many: what it costs for each variable alone, and more for each two. A move that several share
  /// counts for each of them.
  void add_pairs(TensorId tensor, const std::vector<Classes>& of_variable, double weight) {
    std::vector<std::vector<double>> alone;
    for (const Classes& one : of_variable) {
      alone.push_back(seconds_of(tensor, {one}));
      add_table({one}, alone.back(), weight);
    }
    for (size_t i = 0; i < of_variable.size(); ++i)
      for (size_t k = i + 1; k < of_variable.size(); ++k) {
        std::vector<double> both = seconds_of(tensor, {of_variable[i], of_variable[k]});
        for (size_t a = 0, at = 0; a < alone[i].size(); ++a)
          for (size_t b = 0; b < alone[k].size(); ++b, ++at) both[at] -= alone[i][a] + alone[k][b];
        add_table({of_variable[i], of_variable[k]}, both, weight);
      }
  }

  void add_table(const std::vector<Classes>& of_variable, const std::vector<double>& by_class, double weight) {
    if (std::all_of(by_class.begin(), by_class.end(), [](double seconds) { return seconds == 0; })) return;
    CostTable table;
    for (const Classes& one : of_variable) table.variables.push_back(one.variable);
    std::vector<int> setting(table.variables.size(), 0);
    for (;;) {
      size_t at = 0;
      for (size_t i = 0; i < setting.size(); ++i)
        at = at * of_variable[i].first.size() + static_cast<size_t>(of_variable[i].of_candidate[static_cast<size_t>(setting[i])]);
      table.values.push_back(weight * by_class[at]);
      size_t i = setting.size();
      while (i > 0 && ++setting[i - 1] == static_cast<int>(of_variable[i - 1].of_candidate.size())) setting[--i] = 0;
      if (i == 0) break;
    }
    tables_.push_back(std::move(table));
  }

  void count_classes(TensorId tensor, const std::vector<Classes>& of_variable, size_t i, std::vector<double>& by_class) {
    if (i == of_variable.size()) {
      by_class.push_back(traffic_.tensor_seconds(tensor));
      return;
    }
    for (int c : of_variable[i].first) {
      for (int unit : of_variable[i].units) choose(unit, c);
      count_classes(tensor, of_variable, i + 1, by_class);
    }
  }

  std::vector<double> layer_seconds() {
    std::vector<double> seconds(network_.graph.layers.size(), 0);
    for (int u = 0; u < static_cast<int>(num_units()); ++u)
      seconds[static_cast<size_t>(network_.units.all[static_cast<size_t>(u)].layer)] += traffic_.unit_seconds(u);
    for (TensorId t = 0; t < static_cast<TensorId>(network_.graph.tensors.size()); ++t) {
      const std::vector<int> units = traffic_.units_of(t);
      if (!units.empty()) seconds[static_cast<size_t>(network_.units.all[static_cast<size_t>(units[0])].layer)] += traffic_.tensor_seconds(t);
    }
    return seconds;
  }

  std::vector<CutAlternative> next_best(const std::vector<int>& setting) {
    std::vector<CutAlternative> all;
    std::vector<std::vector<double>> sums;
    for (const Candidates& candidates : candidates_) sums.emplace_back(candidates.size(), 0);
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
    std::set<int> told;
    for (int unit : network_.units.of_layer) {
      const size_t v = static_cast<size_t>(variable_of(unit));
      if (!told.insert(variable_of(unit)).second || candidates_[v].size() < 2) continue;
      const size_t l = static_cast<size_t>(network_.units.all[static_cast<size_t>(unit)].layer);
      const Layer& layer = network_.graph.layers[l];
      const size_t own = static_cast<size_t>(setting[v]);
      const std::vector<Ints> own_cuts = cuts_of(mesh_, layer, candidates_[v][own]);
      size_t best = own;
      for (size_t c = 0; c < sums[v].size(); ++c)
        if (c != own && (best == own || sums[v][c] < sums[v][best]) && cuts_of(mesh_, layer, candidates_[v][c]) != own_cuts) best = c;
      if (best == own) continue;
      const double bytes = sent_with(static_cast<int>(v), static_cast<int>(best)) - sent_with(static_cast<int>(v), static_cast<int>(own));
      all.push_back({network_.patterns[l], cuts_of(mesh_, layer, candidates_[v][best]), sums[v][best] - sums[v][own], bytes});
    }
    return all;
  }

  /// Bytes that a rank sends of all tensors that the variable's units make or read, if it takes this value; it keeps it.
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
  const double beside_redistribution_;
  Traffic& traffic_;
  std::vector<int> variable_of_;        // by unit
  std::vector<Candidates> candidates_;  // by variable
  std::vector<CostTable> tables_;
};

}  // namespace

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
  const double whole = folded.repeats.blocks[static_cast<size_t>(of_run)], kept = folded.kept[static_cast<size_t>(of_run)];
  const double spans = static_cast<double>(of_blocks.size()) - 1;
  return kept > spans ? (whole - spans) / (kept - spans) : 1;
}

CutSpace::CutSpace(const CutNetwork& of, const Mesh& on, Effort with, const CostModel& cost, int micro_batches,
                   std::vector<std::optional<LayerStrategy>> given)
    : network(of),
      mesh(on),
      effort(with),
      strategies(std::move(given)),
      traffic(of.graph, of.units, on, cost, micro_batches, once_a_step_part(cost.machine())) {}

FoundCuts find_cuts(CutSpace& space, const AxisSplit& split, CutAim aim, double seconds_per_byte, double bytes_per_weight) {
  CutSearch search(space, split, space.effort, space.strategies, aim);
  search.add_tables(seconds_per_byte, bytes_per_weight);
  return search.solve(split);
}

std::vector<CutAlternative> next_best_cuts(CutSpace& space, const FoundCuts& found) {
  CutSearch search(space, found.split, space.effort, space.strategies, CutAim::least_time);
  search.include(found.of_unit);
  search.add_tables(0, 0);
  return search.next_best(found.of_unit);
}

FoundCuts data_parallel_cuts(CutSpace& space) {
  const AxisSplit split = axis_splits(space.mesh, Effort::low)[0];
  std::vector<std::optional<LayerStrategy>> fixed;
  for (size_t l = 0; l < space.network.graph.layers.size(); ++l) {
    const Layer& layer = space.network.graph.layers[l];
    LayerStrategy& strategy = fixed.emplace_back(LayerStrategy{}).value();
    for (const Axes& axes : data_parallel_axes(space.mesh, layer, space.network.facts[l])) strategy.factor_ways.push_back(space.mesh.ways(axes));
  }
  CutSearch search(space, split, Effort::low, fixed, CutAim::least_time);
  search.add_tables(0, 0);
  return search.solve(split);
}

std::vector<PatternCuts> every_cut(const CutNetwork& network, const Mesh& mesh, const std::vector<std::optional<LayerStrategy>>& strategies) {
  AxisSplit apart;
  for (Axis a = 0; a < mesh.num_axes(); ++a) apart.push_back({a});
  std::vector<PatternCuts> all;
  std::set<std::string> told;
  for (size_t l = 0; l < network.graph.layers.size(); ++l) {
    if (strategies[l] || network.facts[l].is_loss || !told.insert(network.patterns[l]).second) continue;
    PatternCuts of_pattern{network.patterns[l], {}};
    std::set<std::vector<Ints>> distinct;
    for (const FactorAxes& axes : Spread(mesh, network.graph.layers[l], network.facts[l], apart, Effort::high).all()) {
      std::vector<Ints> cuts = cuts_of(mesh, network.graph.layers[l], axes);
      if (distinct.insert(cuts).second) of_pattern.cuts.push_back(std::move(cuts));
    }
    if (of_pattern.cuts.size() > 1) all.push_back(std::move(of_pattern));
  }
  return all;
}

std::string reason_against(const CutAlternative& other) {
  std::vector<std::string> cuts;
  for (const Ints& of_input : other.cuts) cuts.push_back(format_list(of_input));
  const auto time = [](double seconds) { return seconds >= 1e-3 ? fmt::format("{:.2f} ms", 1e3 * seconds) : fmt::format("{:.1f} us", 1e6 * seconds); };
  const std::string bytes = format_bytes(std::llround(std::abs(other.bytes)));
  const bool faster = other.seconds >= 0, less = other.bytes > 0;
  std::string text = (faster ? "saves " : "takes ") + time(std::abs(other.seconds));
  if (faster && less) text += fmt::format(" and {} sent", bytes);
  text += fmt::format(" {}a micro-batch {} [{}]", faster ? "" : "more ", faster ? "against" : "than", join(cuts));
  if (faster && !less && other.bytes != 0) text += fmt::format(", and sends {} more", bytes);
  if (!faster && other.bytes != 0) text += fmt::format(", and sends {} {}", bytes, less ? "less" : "more");
  return text;
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

std::vector<double> kept_bytes(const Graph& graph, const Mesh& mesh, const std::vector<FactorAxes>& of_layer) {
  const auto consumers = consumers_of(graph);
  std::vector<double> bytes(graph.layers.size(), 0);
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::forward) continue;
    const size_t l = static_cast<size_t>(node.layer);
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      if (!is_kept(graph, node.outputs[o], consumers)) continue;
      const Tensor& tensor = graph.tensors[static_cast<size_t>(node.outputs[o])];
      double part = static_cast<double>(bytes_of({tensor.shape, tensor.dtype}));
      for (int f : factors_of(node.rule.outputs[o], graph.layers[l].factors)) part /= mesh.ways(of_layer[l][static_cast<size_t>(f)]);
      bytes[l] += part;
    }
  }
  return bytes;
}

}  // namespace trainctl
