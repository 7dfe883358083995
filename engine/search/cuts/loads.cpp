// From the cuts of each distinct layer to the loads of all layers of the job. The graph has each repeated layer once
// and each adapter as a layer of its own: first every layer of the graph gets its load (graph_loads), then adapters are
// added to the layers that they adapt, and finally each layer of the job takes the load of the layer that stands for
// it.
#include "engine/search/cuts/loads.h"

#include <algorithm>
#include <set>

#include "engine/ops/op_def.h"
#include "engine/plan/axes/sharding_facts.h"
#include "engine/plan/plan.h"
#include "engine/plan/stages/stages.h"
#include "engine/search/cuts/unit_memory.h"

namespace trainctl {
namespace {

/// Adds the time to start each kernel: traffic counts only the time that kernels compute.
void add_launches(const CutNetwork& network, const Machine& machine, std::vector<LayerLoad>& loads) {
  const Graph& graph = network.graph;
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    if (!network.units.all[static_cast<size_t>(network.units.of_node[n])].finishes())
      loads[static_cast<size_t>(graph.nodes[n].layer)].seconds += machine.launch.value;
}

/// Adds the ranks that have the same `bytes` of a parameter, over all of its replicas and over those of one host.
void add_shards(const Mesh& mesh, const CostModel& in_buckets, const Axes& replicas, const Axes& within_host,
                int64_t bytes, LayerLoad& load) {
  const auto add = [&](const Axes& axes, LayerLoad::Shards& shards) {
    shards.ways = mesh.ways(axes);
    if (!axes.empty())
      shards.gather_seconds += in_buckets.collective_seconds(Collective::all_gather, bytes, mesh, axes);
  };
  add(replicas, load.of_all);
  Axes on_host;
  for (Axis axis : replicas)
    if (std::find(within_host.begin(), within_host.end(), axis) != within_host.end()) on_host.push_back(axis);
  if (on_host != replicas)
    add(on_host, load.of_host);
  else
    load.of_host = load.of_all;
}

/// Adds the forward time of each layer, and its parameters, each to the layer of the first node that reads it.
void add_forward(const Graph& graph, const Mesh& mesh, const FoundCuts& cuts, const CostModel& cost,
                 const Axes& within_host, std::vector<LayerLoad>& loads) {
  std::set<TensorId> counted;
  const CostModel in_buckets = cost.without_latency();
  const std::vector<double> seconds = node_seconds(graph, cost);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.phase != Phase::forward) continue;
    const size_t l = static_cast<size_t>(node.layer);
    double ways = 1;
    for (const Axes& axes : cuts.of_layer[l]) ways *= mesh.ways(axes);
    loads[l].forward_seconds += seconds[n] / ways;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Tensor& tensor = graph.tensors[static_cast<size_t>(node.inputs[i])];
      if (tensor.kind != TensorKind::parameter || !counted.insert(node.inputs[i]).second) continue;
      const Layout layout = rule_layout(node.rule.inputs[i], graph.layers[l].factors, cuts.of_layer[l]);
      const double elements = static_cast<double>(num_elements(layout.local_shape(mesh, tensor.shape)));
      if (!tensor.frozen) {
        loads[l].elements += elements;
        const int64_t bytes = static_cast<int64_t>(elements) * byte_size(tensor.dtype);
        add_shards(mesh, in_buckets, layout.replica_axes(mesh), within_host, bytes, loads[l]);
      } else if (tensor.packing == Packing::none) {
        loads[l].frozen_elements += elements;
      } else {
        loads[l].packed_bytes += elements * static_cast<double>(byte_size(tensor.dtype));
      }
    }
  }
}

/// Returns the load of each layer of the graph.
std::vector<LayerLoad> graph_loads(const CutNetwork& network, const Mesh& mesh, const FoundCuts& cuts,
                                   const CostModel& cost, const Axes& within_host) {
  const Graph& graph = network.graph;
  std::vector<LayerLoad> loads(graph.layers.size());
  const std::vector<double> kept = kept_bytes(graph, mesh, cuts.of_layer);
  for (size_t l = 0; l < loads.size(); ++l) {
    loads[l].name = graph.layers[l].name;
    loads[l].seconds = cuts.layer_seconds[l];
    loads[l].kept_bytes = kept[l];
    for (size_t o = 0; o < graph.layers[l].outputs.size(); ++o) {
      const Tensor& tensor = graph.tensors[static_cast<size_t>(graph.layers[l].outputs[o])];
      const Layout layout = rule_layout(graph.layers[l].output_rules[o], graph.layers[l].factors, cuts.of_layer[l]);
      loads[l].made_bytes += static_cast<double>(bytes_of({layout.local_shape(mesh, tensor.shape), tensor.dtype}));
    }
  }
  add_launches(network, cost.machine(), loads);
  add_forward(graph, mesh, cuts, cost, within_host, loads);
  return loads;
}

/// Adds the load of an adapter's layer to that of the adapted layer, because both are in the same stage.
void add_adapter(const LayerLoad& adapter, LayerLoad& to) {
  to.seconds += adapter.seconds;
  to.forward_seconds += adapter.forward_seconds;
  to.kept_bytes += adapter.kept_bytes;
  to.made_bytes = std::max(to.made_bytes, adapter.made_bytes);
  to.elements += adapter.elements;
  to.frozen_elements += adapter.frozen_elements;
  to.packed_bytes += adapter.packed_bytes;
  for (const auto shards : {&LayerLoad::of_all, &LayerLoad::of_host}) {
    (to.*shards).ways = std::max((to.*shards).ways, (adapter.*shards).ways);
    (to.*shards).gather_seconds += (adapter.*shards).gather_seconds;
  }
}

}  // namespace

std::vector<LayerLoad> loads_of(const CutNetwork& network, const JobSpec& whole, const Repeats& repeats,
                                const Mesh& mesh, const FoundCuts& cuts, const CostModel& cost,
                                const Axes& within_host) {
  std::vector<LayerLoad> of_graph = graph_loads(network, mesh, cuts, cost, within_host);
  for (size_t l = 0; l < of_graph.size(); ++l)
    if (const auto owner = static_cast<size_t>(network.owners[l]); owner != l)
      add_adapter(of_graph[l], of_graph[owner]);
  const std::vector<LayerId> layers = network.layers_of_whole(whole, repeats);
  std::vector<LayerLoad> loads;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] < 0) continue;
    loads.push_back(of_graph[static_cast<size_t>(layers[i])]);
    loads.back().name = whole.network[i].name;
    loads.back().is_offloaded = cost.machine().kind == DeviceKind::cuda &&
                                rule_for(whole.parallel.offload.activations, loads.back().name, false) != nullptr;
  }
  for (size_t l = 0; l < of_graph.size(); ++l)
    if (network.facts[l].is_loss) loads.push_back(of_graph[l]);
  return loads;
}

}  // namespace trainctl
