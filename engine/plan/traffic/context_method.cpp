// Chooses parallel.context_method: how the ranks that share the rows of a sequence let attention see all keys and
// values.
//
//   gather    every rank gathers all keys and values
//   ring      blocks of keys and values pass from rank to rank; each rank merges attention over one block after another
//   ulysses   an all_to_all exchanges rows for heads; each rank computes attention of some heads over all rows
//
// A graph, a mesh and a cost model enter. For each layer of attention, `Exchange` has the bytes and the seconds of one
// rank, and gather(), ring() and ulysses() add the seconds that the method costs in addition to the attention itself.
// The method with the fewest seconds is chosen unless the job names one. ulysses is possible only if the ranks divide
// the heads.
#include "engine/plan/traffic/context_method.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/base/text.h"
#include "engine/ops/attention/key_exchange.h"
#include "engine/ops/op_def.h"
#include "engine/ops/row_order.h"
#include "engine/plan/stages/stages.h"

namespace trainctl {
namespace {

/// The attention of one layer on one rank: its bytes and times, with all cuts of parallel.data, tensor and context.
struct Exchange {
  int64_t q_bytes = 0, kv_bytes = 0, out_bytes = 0;
  double forward_seconds = 0, backward_seconds = 0;
  int64_t key_heads = 1;
  bool is_causal = false, is_balanced = false;
  double groups = 1;  ///< groups of pieces of rows (ops/row_order.h)
};

class MethodCosts {
 public:
  MethodCosts(const Graph& graph, const ParallelSpec& parallel, const Mesh& mesh, const CostModel& cost)
      : graph_(graph), mesh_(mesh), cost_(cost), axes_(size_axes(mesh, parallel)), ways_(mesh.ways(axes_.context)) {
    const std::vector<double> seconds = node_seconds(graph, cost);
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      if (!node.attrs.flag(kExchangesKeys)) continue;
      if (node.phase == Phase::forward) exchanges_[node.layer] = exchange_of(node);
      Exchange& exchange = exchanges_[node.layer];
      (node.phase == Phase::forward ? exchange.forward_seconds : exchange.backward_seconds) = seconds[n] / mesh.size();
    }
  }

  std::vector<ContextMethodCost> all() {
    std::vector<ContextMethodCost> costs;
    if (exchanges_.empty() || ways_ == 1) return costs;
    costs.push_back({ContextMethod::gather, sum(&MethodCosts::gather)});
    costs.push_back({ContextMethod::ring, sum(&MethodCosts::ring)});
    const int64_t head_ways = int64_t{ways_} * mesh_.ways(axes_.tensor);
    const bool by_heads = std::all_of(exchanges_.begin(), exchanges_.end(),
                                      [&](const auto& entry) { return entry.second.key_heads % head_ways == 0; });
    if (by_heads) costs.push_back({ContextMethod::ulysses, sum(&MethodCosts::ulysses)});
    return costs;
  }

 private:
  int64_t local_bytes(TensorId tensor) const {
    const Tensor& t = graph_.tensors[static_cast<size_t>(tensor)];
    return num_elements(t.shape) * byte_size(t.dtype) / mesh_.size();
  }

  Exchange exchange_of(const Node& node) {
    Exchange e{.q_bytes = local_bytes(node.inputs[0]),
               .kv_bytes = local_bytes(node.inputs[1]) + local_bytes(node.inputs[2]),
               .out_bytes = local_bytes(node.outputs[0])};
    const std::vector<Factor>& factors = graph_.layers[static_cast<size_t>(node.layer)].factors;
    const int heads = cut_factor(node.rule.inputs[1][2], factors);
    if (heads >= 0 && factors[static_cast<size_t>(heads)].cuttable)
      e.key_heads = factors[static_cast<size_t>(heads)].size;
    e.is_causal = node.attrs.flag("causal");
    e.is_balanced = node.attrs.integer(kRowOrder, 0) > 1;
    e.groups = static_cast<double>(node.attrs.integer(kRowGroups, 1));
    return e;
  }

  double call(Collective kind, int64_t whole_bytes) const {
    return cost_.collective_seconds(kind, whole_bytes, mesh_, axes_.context);
  }
  /// Returns the seconds by which the slowest rank takes longer than the mean. If rows are cut by position and
  /// attention is causal, the last rank has almost twice the mean work.
  double imbalance(const Exchange& e) const {
    return e.is_causal && !e.is_balanced ? (e.forward_seconds + e.backward_seconds) * (1.0 - 1.0 / ways_) : 0;
  }

  double copies(int64_t bytes) const { return cost_.copy_seconds(bytes); }

  // Seconds of the method gather: keys and values are gathered in the forward and in the backward pass, and their
  // gradients are reduced. With balanced rows, pieces of rows are also split, joined, reordered and added: the numbers
  // in copies() and before `launch` count how often these kernels touch each byte, and how many kernels there are.
  double gather(const Exchange& e) const {
    const int64_t whole = e.kv_bytes * ways_, rows = e.q_bytes + e.out_bytes;
    return 2 * call(Collective::all_gather, whole) + call(Collective::reduce_scatter, whole) + imbalance(e) +
           (e.is_balanced ? copies(static_cast<int64_t>(3 + 6 * e.groups) * whole + 6 * rows) +
                                20 * e.groups * cost_.machine().launch.value
                          : 0);
  }
  // Seconds of the method ulysses: q, k, v and the output pass through an all_to_all in the forward pass, and their
  // gradients in the backward pass. Balanced rows are also reordered, by 12 kernels that touch each byte 6 times in
  // total.
  double ulysses(const Exchange& e) const {
    const int64_t all = e.q_bytes + e.kv_bytes + e.out_bytes;
    return 2 * call(Collective::all_to_all, e.q_bytes + e.kv_bytes) + 2 * call(Collective::all_to_all, e.out_bytes) +
           (e.is_balanced ? copies(6 * all) + 12 * cost_.machine().launch.value : 0);
  }
  // Seconds of the method ring: transfers that kernels do not hide, the starts of additional kernels in each step, and
  // the bytes that these kernels touch.
  double ring(const Exchange& e) const {
    const Machine& machine = cost_.machine();
    std::vector<int> ranks = mesh_.group(0, axes_.context);
    ranks.resize(2);
    const auto send = [&](int64_t bytes) {
      return send_time(machine, Bytes{static_cast<double>(bytes)}, spread_of(machine, ranks)).value;
    };
    // A transfer that overlaps with a kernel slows the kernel down.
    const auto exposed = [&](double transfer, double kernel) {
      if (!machine.overlaps) return transfer;
      return std::max(0.0, transfer - kernel) + (machine.overlap_cost - 1) * std::min(transfer, kernel);
    };
    const double steps = ways_ - 1;
    const double transfers = steps * exposed(send(e.kv_bytes), e.forward_seconds / ways_) +
                             steps * exposed(send(2 * e.kv_bytes), e.backward_seconds / ways_) + send(e.kv_bytes);
    const double launches = (e.is_balanced ? 6 * (2 * e.groups * e.groups + e.groups) : 8) * machine.launch.value;
    return transfers + steps * launches + copies(ring_bytes(e)) + imbalance(e);
  }

  /// Bytes that the kernels of a ring read and write in addition to those of one call: pieces of rows are split and
  /// joined, partial outputs are merged, and partial gradients are added.
  int64_t ring_bytes(const Exchange& e) const {
    const double steps = ways_ - 1, q = static_cast<double>(e.q_bytes), out = static_cast<double>(e.out_bytes),
                 kv = static_cast<double>(e.kv_bytes);
    constexpr double kMerge = 3;  // reads two and writes one
    if (!e.is_balanced) return static_cast<int64_t>(steps * kMerge * (q + out + kv));
    // In each step but the first, a rank sees half of the pairs of pieces; in the first it has the pairs of its own
    // block.
    const double pieces = 2 * e.groups, merges = (pieces - 1) / 2, merges_per_step = pieces / 2;
    const double once = 6 * (q + out + kv) + kMerge * merges * (q + out + kv);
    const double per_step = kMerge * merges_per_step * (q + out) + (9 + kMerge * merges / 2) * kv;
    return static_cast<int64_t>(once + steps * per_step);
  }

  double sum(double (MethodCosts::*method)(const Exchange&) const) const {
    double seconds = 0;
    for (const auto& [layer, exchange] : exchanges_) seconds += (this->*method)(exchange);
    return seconds;
  }

  const Graph& graph_;
  const Mesh& mesh_;
  const CostModel& cost_;
  const SizeAxes axes_;
  const int ways_;
  std::map<LayerId, Exchange> exchanges_;
};

}  // namespace

std::vector<ContextMethodCost> context_method_costs(const Graph& graph, const ParallelSpec& parallel, const Mesh& mesh,
                                                    const CostModel& cost) {
  return parallel.context > 1 ? MethodCosts(graph, parallel, mesh, cost).all() : std::vector<ContextMethodCost>{};
}

ContextMethod choose_context_method(const ParallelSpec& parallel, const std::vector<ContextMethodCost>& costs) {
  if (parallel.context_method != ContextMethod::automatic) return parallel.context_method;
  const auto best =
      std::min_element(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  return best == costs.end() ? ContextMethod::gather : best->method;
}

namespace {

/// States that causal work is not balanced, and why, if `chosen` leaves rows on the ranks; "" if nothing is lost.
std::string unbalanced_rows(const Graph& graph, int64_t ranks, ContextMethod chosen) {
  const auto attention = std::find_if(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    return node.attrs.flag(kExchangesKeys) && node.attrs.flag("causal") && node.attrs.integer("window", 0) == 0;
  });
  if (attention == graph.nodes.end() || chosen == ContextMethod::ulysses) return {};
  const int64_t rows = graph.tensors[static_cast<size_t>(attention->inputs[0])].shape[1], pieces = 2 * ranks;
  return "; rows are in their order, so the last rank computes almost twice the mean of causal attention: " +
         (rows % pieces != 0 ? fmt::format("{} rows are not a multiple of {}", with_commas(rows), pieces)
                             : "other layers depend on the order");
}

}  // namespace

std::string context_method_note(const Graph& graph, const ParallelSpec& parallel, ContextMethod chosen,
                                const std::vector<ContextMethodCost>& costs) {
  if (costs.empty()) return {};
  std::vector<std::string> each;
  for (const ContextMethodCost& cost : costs)
    each.push_back(fmt::format("{} {:.3g} ms", to_string(cost.method), cost.seconds * 1e3));
  const auto balanced = std::find_if(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    return node.attrs.flag(kExchangesKeys) && node.attrs.integer(kRowOrder, 0) > 1;
  });
  std::string rows;
  if (balanced != graph.nodes.end()) {
    const int64_t groups = balanced->attrs.integer(kRowGroups, 1);
    rows = fmt::format("; rank i of {} has the pieces i and {} - i of {} of each {}", parallel.context,
                       2 * parallel.context - 1, 2 * parallel.context,
                       groups > 1 ? fmt::format("of the {} parts of a sequence", groups) : "sequence");
    if (balanced->attrs.has(kRowGroups))
      rows += ", and documents are put in an order in which ranks have about the same work";
  } else {
    rows = unbalanced_rows(graph, parallel.context, chosen);
  }
  return fmt::format("attention over {} ranks: {} (estimated cost per micro-batch: {}){}", parallel.context,
                     to_string(chosen), join(each), rows);
}

}  // namespace trainctl
