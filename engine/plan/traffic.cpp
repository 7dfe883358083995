// Each list of axes that occurs has a number, so that the common case, a tensor read in the layout in which it was
// made, costs one comparison of numbers.
#include "engine/plan/traffic.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/ops/op_def.h"
#include "engine/plan/plan.h"
#include "engine/plan/redistribution.h"
#include "engine/plan/stages.h"

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

bool has(const std::vector<int>& factors, int factor) {
  return std::find(factors.begin(), factors.end(), factor) != factors.end();
}

int64_t statistics_bytes(const Graph& graph, const Node& node) {
  std::vector<TensorInfo> infos;
  for (TensorId t : node.inputs) infos.push_back({graph.tensors[t].shape, graph.tensors[t].dtype});
  return bytes_of({get_op(node.op).inner_sum->shape(infos, node.attrs)});
}

}  // namespace

Traffic::Traffic(const Graph& graph, const Mesh& mesh, const CostModel& cost, int micro_batches)
    : mesh_(mesh), cost_(cost), bucketed_(cost), once_a_step_weight_(1.0 / micro_batches) {
  check(mesh.num_axes() <= 64, "the size of a mesh is an int");
  bucketed_.wire_latency_seconds = 0;
  touched_.resize(graph.layers.size());
  work_.resize(graph.layers.size());
  is_set_.resize(graph.layers.size(), false);
  for (const Layer& layer : graph.layers) {
    codes_.emplace_back(layer.factors.size(), kNotCut);
    ways_.emplace_back(layer.factors.size(), 1);
  }
  std::vector<std::vector<NodeId>> consumers(graph.tensors.size());
  const std::vector<double> seconds = node_seconds(graph, cost);
  std::vector<std::vector<NodeId>> with_statistics(graph.layers.size());
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes.size()); ++n) {
    const Node& node = graph.nodes[n];
    for (TensorId t : node.inputs) consumers[t].push_back(n);
    std::vector<TensorRule> all = node.rule.inputs;
    all.insert(all.end(), node.rule.outputs.begin(), node.rule.outputs.end());
    NodeWork& work = work_[node.layer].emplace_back(NodeWork{seconds[n], factors_in(all), node.rule.inner});
    if (node.rule.inner.empty()) continue;
    std::vector<NodeId>& exchanging = with_statistics[node.layer];
    const bool shares = std::any_of(exchanging.begin(), exchanging.end(),
                                    [&](NodeId other) { return share_statistics(graph.nodes[other], node); });
    if (!shares) work.statistics_bytes = statistics_bytes(graph, node);
    exchanging.push_back(n);
  }
  for (TensorId t = 0; t < static_cast<TensorId>(graph.tensors.size()); ++t) add_tensor(graph, t, consumers[t]);
  add_gradient_sums(graph);
  for (size_t t = 0; t < tensors_.size(); ++t) {
    std::vector<LayerId> layers = {tensors_[t].source.layer};
    for (const Use& target : tensors_[t].targets) layers.push_back(target.layer);
    std::sort(layers.begin(), layers.end());
    layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
    for (LayerId l : layers) {
      if (l >= 0) touched_[l].push_back(t);
    }
  }
}

void Traffic::add_tensor(const Graph& graph, TensorId id, const std::vector<NodeId>& consumers) {
  const Tensor& tensor = graph.tensors[id];
  TensorUses& uses = tensors_.emplace_back();
  const auto shape = std::find(shapes_.begin(), shapes_.end(), std::pair{tensor.shape, tensor.dtype});
  uses.shape_class = static_cast<uint64_t>(shape - shapes_.begin());
  if (shape == shapes_.end()) shapes_.emplace_back(tensor.shape, tensor.dtype);
  // A rank loads any part of the data set's tensors locally.
  if (tensor.kind == TensorKind::input) return;
  const bool kept = tensor.kind == TensorKind::parameter || tensor.kind == TensorKind::state;
  if (tensor.producer >= 0) {
    const Node& node = graph.nodes[tensor.producer];
    const size_t o = std::find(node.outputs.begin(), node.outputs.end(), id) - node.outputs.begin();
    uses.source = {node.layer, cut_factors(node.rule.outputs[o], graph.layers[node.layer].factors), {}, false};
    const std::vector<int> made = factors_in({node.rule.outputs[o]});
    for (int f : factors_in(node.rule.inputs)) {
      const bool summed = !std::binary_search(made.begin(), made.end(), f) && !has(node.rule.inner, f);
      if (summed) uses.source.summed.push_back(f);
    }
  }
  for (NodeId n : consumers) {
    const Node& node = graph.nodes[n];
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] != id) continue;
      Use use{node.layer, cut_factors(node.rule.inputs[i], graph.layers[node.layer].factors), {}, kept};
      if (uses.source.layer < 0 && kept) uses.source = use;  // the first layer decides a variable's layout
      if (std::find(uses.targets.begin(), uses.targets.end(), use) == uses.targets.end()) uses.targets.push_back(use);
    }
  }
}

void Traffic::add_gradient_sums(const Graph& graph) {
  for (const Update& update : graph.updates) {
    Use home = tensors_[update.parameter].source;
    if (home.layer < 0) continue;
    home.once_a_step = true;
    for (TensorId gradient : update.gradients) tensors_[gradient].targets.push_back(home);
  }
}

void Traffic::set(LayerId layer, const FactorAxes& axes) {
  is_set_[layer] = true;
  for (size_t f = 0; f < axes.size(); ++f) {
    codes_[layer][f] = number_of(axes[f]);
    ways_[layer][f] = mesh_.ways(axes[f]);
  }
}

uint64_t Traffic::number_of(const Axes& axes) {
  const auto [known, fresh] = axes_numbers_.try_emplace(axes, axes_lists_.size());
  if (fresh) axes_lists_.push_back(axes);
  return known->second;
}

double Traffic::work_seconds(LayerId layer) const {
  double seconds = 0;
  for (const NodeWork& work : work_[layer]) {
    double ways = 1;
    for (int f : work.factors) ways *= ways_[layer][f];
    seconds += work.seconds / ways + inner_sum_seconds(layer, work);
  }
  return seconds;
}

double Traffic::inner_sum_seconds(LayerId layer, const NodeWork& work) const {
  int parts = 1;
  for (int f : work.inner) parts *= ways_[layer][f];
  if (parts == 1 || work.statistics_bytes == 0) return 0;
  int64_t bytes = work.statistics_bytes * parts;
  for (int f : work.factors) bytes /= has(work.inner, f) ? 1 : ways_[layer][f];
  return cost_.collective_seconds(Collective::all_gather, bytes, parts);
}

double Traffic::around(LayerId layer) {
  double seconds = work_seconds(layer);
  for (size_t t : touched_[layer]) seconds += tensor_seconds(tensors_[t]);
  return seconds;
}

double Traffic::total() {
  double seconds = 0;
  for (LayerId l = 0; l < static_cast<LayerId>(work_.size()); ++l) {
    if (is_set_[l]) seconds += work_seconds(l);
  }
  for (const TensorUses& tensor : tensors_) seconds += tensor_seconds(tensor);
  return seconds;
}

void Traffic::pack(const Use& use, std::vector<uint64_t>& out) const {
  out.clear();
  const std::vector<uint64_t>& codes = codes_[use.layer];
  for (int f : use.dims) out.push_back(f < 0 ? kNotCut : codes[f]);
  uint64_t partial = 0;  // a set: one bit per axis
  for (int f : use.summed) {
    for (Axis a : axes_lists_[codes[f]]) partial |= uint64_t{1} << a;
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

double Traffic::tensor_seconds(const TensorUses& tensor) {
  if (tensor.source.layer < 0 || !is_set_[tensor.source.layer]) return 0;
  pack(tensor.source, from_);
  double seconds = 0;
  counted_.clear();
  for (const Use& target : tensor.targets) {
    if (!is_set_[target.layer]) continue;
    pack(target, to_);
    // Two readers of the same layout share the tensor redistributed for the first.
    if (to_ == from_ || std::find(counted_.begin(), counted_.end(), to_) != counted_.end()) continue;
    counted_.push_back(to_);
    seconds += move_seconds(tensor, target);
  }
  return seconds;
}

double Traffic::move_seconds(const TensorUses& tensor, const Use& target) {
  std::string key;
  const auto append = [&key](uint64_t code) { key.append(reinterpret_cast<const char*>(&code), sizeof code); };
  append(tensor.shape_class * 2 + (target.once_a_step ? 1 : 0));
  for (uint64_t code : from_) append(code);
  for (uint64_t code : to_) append(code);
  const auto [known, fresh] = known_.try_emplace(key, 0.0);
  if (fresh) {
    const auto& [shape, dtype] = shapes_[tensor.shape_class];
    const CostModel& cost = target.once_a_step ? bucketed_ : cost_;
    const auto steps = plan_redistribution(mesh_, shape, dtype, unpack(from_), unpack(to_), cost);
    known->second = redistribution_seconds(mesh_, shape, dtype, steps, cost);
    if (target.once_a_step) known->second *= once_a_step_weight_;
  }
  return known->second;
}

}  // namespace trainctl
