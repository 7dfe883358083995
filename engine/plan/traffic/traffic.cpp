// Computes the seconds of a micro-batch for a choice of axes, many times in one search. The graph, its units and a mesh
// enter once, in the constructor, which reduces them to what depends on axes:
//
//   NodeWork     of each node of a unit: its seconds on one rank, and the factors whose cuts divide them
//   TensorUses   of each tensor: the uses that make it (sources) and read it (targets), with the factor of each dim
//
// Then set() gives units their axes, and around() and total() return the seconds of kernels, of sums over inner factors
// (inner_sum_seconds) and of redistributions, from each layout in which a tensor is made to each in which it is read
// (moved). Each list of axes that occurs has a number, so that the common case, a tensor read in the layout in which it
// was made, costs one comparison of numbers. The cost of each pair of layouts is computed once (move).
#include "engine/plan/traffic/traffic.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/graph/contraction.h"
#include "engine/ops/attention/key_exchange.h"
#include "engine/ops/op_def.h"
#include "engine/plan/numbers_text.h"
#include "engine/plan/plan.h"
#include "engine/plan/stages/stages.h"
#include "engine/plan/traffic/redistribution.h"
#include "engine/plan/traffic/sums.h"

namespace trainctl {
namespace {

std::vector<int> cut_factors(const TensorRule& rule, const std::vector<Factor>& factors) {
  std::vector<int> cut;
  for (const DimRule& dim : rule) cut.push_back(cut_factor(dim, factors));
  return cut;
}

std::vector<int> factors_in(const std::vector<TensorRule>& rules) {
  std::vector<int> found;
  for (const TensorRule& rule : rules) {
    for (const DimRule& dim : rule) found.insert(found.end(), dim.begin(), dim.end());
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

bool contains_axis(const std::vector<int>& factors, int factor) {
  return std::find(factors.begin(), factors.end(), factor) != factors.end();
}

std::vector<TensorInfo> infos_of(const Graph& graph, const Node& node) {
  std::vector<TensorInfo> infos;
  for (TensorId t : node.inputs) infos.push_back({graph.tensors[t].shape, graph.tensors[t].dtype});
  return infos;
}

int causal_rows(const Graph& graph, const Node& node) {
  constexpr size_t kRowDim = 1;
  if (!node.attrs.flag("causal") || node.attrs.flag(kExchangesKeys) || node.rule.outputs.empty()) return -1;
  const TensorRule& rule = node.rule.outputs[0];
  return rule.size() > kRowDim ? cut_factor(rule[kRowDim], graph.layers[node.layer].factors) : -1;
}

int64_t statistics_bytes(const Graph& graph, const Node& node) {
  return bytes_of({get_op(node.op).inner_sum->shape(infos_of(graph, node), node.attrs)});
}

/// Returns the bytes of all blocks that a rank exchanges (InnerSum::block), for each number of shards into which an
/// inner factor may be cut.
std::map<int, int64_t> block_bytes(const Graph& graph, const Node& node, const Mesh& mesh) {
  const std::vector<TensorInfo> infos = infos_of(graph, node);
  const int64_t size = graph.layers[node.layer].factors[node.rule.inner[0]].size;
  std::map<int, int64_t> bytes;
  for (int shards = 2; shards <= mesh.size(); ++shards) {
    if (mesh.size() % shards != 0 || size % shards != 0) continue;
    bytes[shards] = shards * bytes_of({get_op(node.op).inner_sum->block(infos, node.attrs, shards), infos[0].dtype});
  }
  return bytes;
}

}  // namespace

Traffic::Traffic(const Graph& graph, const Units& units, const Mesh& mesh, const CostModel& cost, int micro_batches,
                 double once_per_step_part)
    : units_(units),
      mesh_(mesh),
      cost_(cost),
      bucketed_(cost.without_latency()),
      once_per_step_weight_(once_per_step_part / micro_batches),
      once_per_step_share_(1.0 / micro_batches) {
  check(mesh.num_axes() <= 64, "the size of a mesh is an int");
  touched_.resize(units.all.size());
  work_.resize(units.all.size());
  is_set_.resize(units.all.size(), false);
  for (const Unit& unit : units.all) {
    const size_t factors = graph.layers[unit.layer].factors.size();
    coded_.push_back({std::vector<uint64_t>(factors, kNotCut), std::vector<int>(factors, 1)});
  }
  add_work(graph);
  std::vector<std::vector<NodeId>> consumers(graph.tensors.size());
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes.size()); ++n)
    for (TensorId t : graph.nodes[n].inputs) consumers[t].push_back(n);
  for (TensorId t = 0; t < static_cast<TensorId>(graph.tensors.size()); ++t) add_tensor(graph, t, consumers[t]);
  add_gradient_sums(graph);
  join_terms(graph);
  for (size_t t = 0; t < tensors_.size(); ++t)
    for (int unit : units_of(static_cast<TensorId>(t))) touched_[unit].push_back(t);
}

/// Collects the work of the nodes of each unit.
void Traffic::add_work(const Graph& graph) {
  const std::vector<double> seconds = node_seconds(graph, cost_);
  std::vector<std::vector<NodeId>> with_statistics(units_.all.size());
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes.size()); ++n) {
    const Node& node = graph.nodes[n];
    std::vector<TensorRule> all = node.rule.inputs;
    all.insert(all.end(), node.rule.outputs.begin(), node.rule.outputs.end());
    const int unit = units_.of_node[n];
    // Nodes that finish a layer take no time of their own: their kernel fuses with the product's, or with that of a
    // reader.
    const double own = units_.all[unit].finishes() ? 0 : seconds[n];
    NodeWork& work = work_[unit].emplace_back(NodeWork{own, factors_in(all), node.rule.inner});
    work.causal_rows = causal_rows(graph, node);
    if (node.rule.inner.empty()) continue;
    if (get_op(node.op).inner_sum->block != nullptr) {
      work.block_bytes = block_bytes(graph, node, mesh_);
      continue;
    }
    std::vector<NodeId>& exchanging = with_statistics[unit];
    const bool shares = std::any_of(exchanging.begin(), exchanging.end(),
                                    [&](NodeId other) { return share_statistics(graph.nodes[other], node); });
    if (!shares) work.statistics_bytes = statistics_bytes(graph, node);
    exchanging.push_back(n);
  }
}

std::vector<int> Traffic::units_of(TensorId tensor) const {
  const TensorUses& uses = tensors_[static_cast<size_t>(tensor)];
  std::vector<int> units;
  for (const Use& source : uses.sources) units.push_back(source.unit);
  for (const Use& target : uses.targets) units.push_back(target.unit);
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  return units;
}

std::vector<int> Traffic::units_beside(int unit) const {
  std::vector<int> units;
  for (size_t t : touched_[unit])
    for (const std::vector<Use>* list : {&tensors_[t].sources, &tensors_[t].targets})
      for (const Use& use : *list) units.push_back(use.unit);
  return units;
}

void Traffic::describe(int unit, std::string& out) const {
  for (const NodeWork& work : work_[unit]) {
    put_number(out, work.seconds);
    put_numbers(out, work.factors);
    put_numbers(out, work.inner);
    put_number(out, work.statistics_bytes);
    put_number(out, work.causal_rows);
    for (const auto& [shards, bytes] : work.block_bytes) {
      put_number(out, shards);
      put_number(out, bytes);
    }
  }
  for (size_t t : touched_[unit])
    describe(
        tensors_[t], [&](int other) { return other - unit; }, out);
}

void Traffic::describe(TensorId tensor, const std::vector<int>& number_of_unit, std::string& out) const {
  describe(
      tensors_[static_cast<size_t>(tensor)], [&](int unit) { return number_of_unit[static_cast<size_t>(unit)]; }, out);
}

template <class NumberOf>
void Traffic::describe(const TensorUses& tensor, NumberOf number_of, std::string& out) {
  put_number(out, static_cast<int64_t>(tensor.shape_class));
  for (const std::vector<Use>* list : {&tensor.sources, &tensor.targets}) {
    put_number(out, static_cast<int64_t>(list->size()));
    for (const Use& use : *list) {
      put_number(out, number_of(use.unit));
      put_numbers(out, use.dims);
      put_numbers(out, use.summed);
      put_number(out, use.once_per_step);
    }
  }
}

size_t Traffic::num_uses(TensorId tensor) const {
  const TensorUses& uses = tensors_[static_cast<size_t>(tensor)];
  return uses.sources.size() + uses.targets.size();
}

std::vector<Traffic::UseLayout> Traffic::layouts_at(TensorId tensor, int unit) {
  const TensorUses& uses = tensors_[static_cast<size_t>(tensor)];
  std::vector<UseLayout> all;
  size_t at = 0;
  for (const std::vector<Use>* list : {&uses.sources, &uses.targets})
    for (const Use& use : *list) {
      const size_t place = at++;
      if (use.unit != unit) continue;
      pack(use, from_);
      all.push_back({place, layout_number(from_)});
    }
  return all;
}

size_t Traffic::PackedHash::operator()(const std::vector<uint64_t>& packed) const {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // multiplier of the hash: 2^64 divided by the golden ratio
  uint64_t hash = packed.size();
  for (uint64_t code : packed) hash = (hash ^ code) * kOdd;
  return static_cast<size_t>(hash >> 24);
}

int Traffic::layout_number(const std::vector<uint64_t>& packed) {
  const auto [known, fresh] = layout_numbers_.try_emplace(packed, static_cast<int>(layouts_.size()));
  if (fresh) layouts_.push_back(&known->first);
  return known->second;
}

double Traffic::tensor_seconds(TensorId id, const std::vector<int>& layouts) {
  const TensorUses& tensor = tensors_[static_cast<size_t>(id)];
  const auto sources = layouts.begin(), targets = sources + static_cast<std::ptrdiff_t>(tensor.sources.size());
  double seconds = 0;
  for (auto from = sources; from != targets; ++from) {
    if (*from < 0 || std::find(sources, from, *from) != from) continue;
    for (auto to = targets; to != layouts.end(); ++to)
      if (*to >= 0 && *to != *from && std::find(targets, to, *to) == to)
        seconds += move(tensor, tensor.targets[static_cast<size_t>(to - targets)].once_per_step, *from, *to).seconds;
  }
  return seconds;
}

/// Collects the uses of a tensor: the node that makes it, and the nodes that read it.
void Traffic::add_tensor(const Graph& graph, TensorId id, const std::vector<NodeId>& consumers) {
  const Tensor& tensor = graph.tensors[id];
  TensorUses& uses = tensors_.emplace_back();
  const auto shape = std::find(shapes_.begin(), shapes_.end(), std::pair{tensor.shape, tensor.dtype});
  uses.shape_class = static_cast<uint64_t>(shape - shapes_.begin());
  if (shape == shapes_.end()) shapes_.emplace_back(tensor.shape, tensor.dtype);
  // Each rank loads the part of a data set tensor that it needs, so these tensors are never redistributed.
  if (tensor.kind == TensorKind::input) return;
  const bool kept = tensor.kind == TensorKind::parameter || tensor.kind == TensorKind::state;
  if (tensor.producer >= 0) uses.sources.push_back(made_by(graph, id));
  for (NodeId n : consumers) {
    const Node& node = graph.nodes[n];
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] != id) continue;
      Use use{units_.of_node[n], cut_factors(node.rule.inputs[i], graph.layers[node.layer].factors), {}, kept};
      if (uses.sources.empty() && kept) uses.sources.push_back(use);  // its first reader decides its layout
      if (std::find(uses.targets.begin(), uses.targets.end(), use) == uses.targets.end()) uses.targets.push_back(use);
    }
  }
}

Traffic::Use Traffic::made_by(const Graph& graph, TensorId tensor) const {
  const NodeId producer = graph.tensors[tensor].producer;
  const Node& node = graph.nodes[producer];
  const size_t o = std::find(node.outputs.begin(), node.outputs.end(), tensor) - node.outputs.begin();
  return {units_.of_node[producer], cut_factors(node.rule.outputs[o], graph.layers[node.layer].factors),
          contracted_factors(node.rule, static_cast<int>(o)), false};
}

// A gradient with several terms is treated as one tensor whose sources are the terms. The nodes that add the terms then
// cost no redistribution of their own. If a term is itself a sum and other nodes read it too, it stays a separate
// tensor: otherwise the gradient of a residual stream would have a term from every later block.
void Traffic::join_terms(const Graph& graph) {
  std::vector<int> readers(graph.tensors.size(), 0);
  for (const Node& node : graph.nodes)
    for (TensorId t : node.inputs) ++readers[t];
  std::vector<bool> is_sum(graph.tensors.size(), false);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.phase != Phase::backward || !adds_terms(graph, node)) continue;
    std::vector<Use> sources;
    const auto add_once = [&sources](const Use& source) {
      if (std::find(sources.begin(), sources.end(), source) == sources.end()) sources.push_back(source);
    };
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const TensorId id = node.inputs[i];
      if (is_sum[id] && readers[id] > 1) {
        add_once(made_by(graph, node.outputs[0]));
        continue;
      }
      TensorUses& term = tensors_[id];
      for (const Use& source : term.sources) add_once(source);
      std::erase(term.targets,
                 Use{units_.of_node[n], cut_factors(node.rule.inputs[i], graph.layers[node.layer].factors), {}, false});
    }
    tensors_[node.outputs[0]].sources = std::move(sources);
    is_sum[node.outputs[0]] = true;
  }
}

void Traffic::add_gradient_sums(const Graph& graph) {
  for (const Update& update : graph.updates) {
    if (tensors_[update.parameter].sources.empty()) continue;
    Use home = tensors_[update.parameter].sources[0];
    home.once_per_step = true;
    for (TensorId gradient : update.gradients) tensors_[gradient].targets.push_back(home);
  }
}

void Traffic::set(int unit, const FactorAxes& axes) {
  is_set_[unit] = true;
  for (size_t f = 0; f < axes.size(); ++f) {
    coded_[unit].codes[f] = number_of(axes[f]);
    coded_[unit].ways[f] = mesh_.ways(axes[f]);
  }
}

Traffic::Coded Traffic::coded(const FactorAxes& axes) {
  Coded coded;
  for (const Axes& of_factor : axes) {
    coded.codes.push_back(number_of(of_factor));
    coded.ways.push_back(mesh_.ways(of_factor));
  }
  return coded;
}

void Traffic::set(int unit, const Coded& axes) {
  is_set_[unit] = true;
  coded_[unit] = axes;
}

uint64_t Traffic::number_of(const Axes& axes) {
  const auto [known, fresh] = axes_numbers_.try_emplace(axes, axes_lists_.size());
  if (fresh) axes_lists_.push_back(axes);
  return known->second;
}

double Traffic::work_seconds(int unit) const {
  double seconds = 0;
  for (const NodeWork& work : work_[unit]) {
    double ways = 1;
    for (int f : work.factors) ways *= coded_[unit].ways[f];
    // Rows are cut by position. With a causal mask the last of n ranks computes 2 - 1/n times the mean.
    const double slowest = work.causal_rows < 0 ? 1 : 2 - 1.0 / coded_[unit].ways[work.causal_rows];
    seconds += slowest * work.seconds / std::min<double>(ways, mesh_.size()) + inner_sum_seconds(unit, work);
  }
  return seconds;
}

double Traffic::inner_sum_seconds(int unit, const NodeWork& work) const {
  Axes axes;
  for (int f : work.inner) {
    const Axes& cut = axes_lists_[coded_[unit].codes[f]];
    axes.insert(axes.end(), cut.begin(), cut.end());
  }
  const int shards = mesh_.ways(axes);
  const bool exchanges = !work.block_bytes.empty();
  if (shards == 1 || (work.statistics_bytes == 0 && !exchanges)) return 0;
  int64_t bytes = exchanges ? work.block_bytes.at(shards) : work.statistics_bytes * shards;
  for (int f : work.factors) bytes /= contains_axis(work.inner, f) ? 1 : coded_[unit].ways[f];
  return cost_.collective_seconds(exchanges ? Collective::all_to_all : Collective::all_gather, bytes, mesh_, axes);
}

double Traffic::around(const std::vector<int>& units) {
  seen_.resize(tensors_.size());
  ++calls_;
  double seconds = 0;
  for (int unit : units) {
    if (is_set_[unit]) seconds += work_seconds(unit);
    for (size_t t : touched_[unit]) {
      if (std::exchange(seen_[t], calls_) != calls_) seconds += moved(tensors_[t]).seconds;
    }
  }
  return seconds;
}

double Traffic::total() {
  double seconds = 0;
  for (int unit = 0; unit < static_cast<int>(work_.size()); ++unit) {
    if (is_set_[unit]) seconds += work_seconds(unit);
  }
  for (const TensorUses& tensor : tensors_) seconds += moved(tensor).seconds;
  return seconds;
}

void Traffic::pack(const Use& use, std::vector<uint64_t>& out) const {
  out.clear();
  const std::vector<uint64_t>& codes = coded_[use.unit].codes;
  for (int f : use.dims) out.push_back(f < 0 ? kNotCut : codes[f]);
  uint64_t partial = 0;  // the set of axes of the partial sum, one bit per axis
  for (int f : use.summed) {
    for (Axis a : axes_lists_[codes[f]]) partial |= uint64_t{1} << a;
  }
  for (int f : use.dims) {
    if (partial == 0 || f < 0) continue;
    for (Axis a : axes_lists_[codes[f]]) partial &= ~(uint64_t{1} << a);
  }
  out.push_back(partial);
}

Layout Traffic::unpack(const std::vector<uint64_t>& packed) const {
  Layout layout;
  for (size_t d = 0; d + 1 < packed.size(); ++d) layout.dims.push_back(axes_lists_[packed[d]]);
  for (Axis a = 0; a < mesh_.num_axes(); ++a) {
    if (packed.back() >> a & 1u) layout.partial.push_back(a);
  }
  return layout;
}

bool Traffic::moves_once_per_step(TensorId tensor) const {
  const std::vector<Use>& targets = tensors_[static_cast<size_t>(tensor)].targets;
  return !targets.empty() &&
         std::all_of(targets.begin(), targets.end(), [](const Use& use) { return use.once_per_step; });
}

/// Sums the cost of all redistributions of a tensor: from each distinct layout of its sources to each distinct layout
/// of its readers.
Traffic::Moved Traffic::moved(const TensorUses& tensor) {
  const auto is_new = [](std::vector<uint64_t>& counted, const std::vector<uint64_t>& packed) {
    for (auto at = counted.begin(); at != counted.end(); at += static_cast<std::ptrdiff_t>(packed.size()))
      if (std::equal(packed.begin(), packed.end(), at)) return false;
    counted.insert(counted.end(), packed.begin(), packed.end());
    return true;
  };
  Moved all;
  counted_sources_.clear();
  for (const Use& source : tensor.sources) {
    if (!is_set_[source.unit]) continue;
    pack(source, from_);
    if (!is_new(counted_sources_, from_)) continue;
    int from = -1;
    counted_.clear();
    for (const Use& target : tensor.targets) {
      if (!is_set_[target.unit]) continue;
      pack(target, to_);
      // Two readers of the same layout share the tensor redistributed for the first.
      if (to_ == from_ || !is_new(counted_, to_)) continue;
      if (from < 0) from = layout_number(from_);
      const Moved& one = move(tensor, target.once_per_step, from, layout_number(to_));
      all.seconds += one.seconds;
      all.bytes += one.bytes;
    }
  }
  return all;
}

const Traffic::Moved& Traffic::move(const TensorUses& tensor, bool once_per_step, int from, int to) {
  constexpr int kLayoutBits = 24;
  const uint64_t what = tensor.shape_class * 2 + (once_per_step ? 1 : 0);
  const uint64_t key = (what << kLayoutBits | static_cast<uint64_t>(from)) << kLayoutBits | static_cast<uint64_t>(to);
  const auto [known, fresh] = known_.try_emplace(key);
  if (fresh) {
    const auto& [shape, dtype] = shapes_[tensor.shape_class];
    const CostModel& cost = once_per_step ? bucketed_ : cost_;
    const auto steps = plan_redistribution(mesh_, shape, dtype, unpack(*layouts_[static_cast<size_t>(from)]),
                                           unpack(*layouts_[static_cast<size_t>(to)]), cost);
    known->second = {redistribution_seconds(mesh_, shape, dtype, steps, cost),
                     redistribution_bytes(mesh_, shape, dtype, steps)};
    if (once_per_step) {
      known->second.seconds *= once_per_step_weight_;
      known->second.bytes *= once_per_step_share_;
    }
  }
  return known->second;
}

}  // namespace trainctl
