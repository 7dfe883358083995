// Recompute computes tensors again instead of keeping them from the forward to the backward pass. A region consists of
// the outputs of neighboring recomputed layers of one stage. In each region the results of collectives that save the
// most seconds per byte are kept, up to a third of the bytes that recomputing it saves.
#include "engine/plan/stages/kept_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>

#include "engine/base/text.h"
#include "engine/ops/op_def.h"
#include "engine/plan/traffic/redistribution.h"

namespace trainctl {

extern const OpDef split_op;

namespace {

/// For each byte that recompute saves in a region, at most 1 / kSavedPerKeptByte bytes of results are kept.
constexpr int64_t kSavedPerKeptByte = 3;
constexpr std::string_view kKeeps = "recompute keeps the result of", kRepeats = "recompute repeats";

struct Result {
  TensorId tensor = -1;
  Layout layout;
  std::vector<RedistributionStep> steps;  ///< the redistribution from the layout in which the tensor is computed
  double seconds = 0;
  int64_t bytes = 0;
  bool is_collective() const {
    return std::any_of(steps.begin(), steps.end(), [](const auto& step) { return step.kind != StepKind::slice; });
  }
};

class KeptResults {
 public:
  KeptResults(const Graph& graph, const CostModel& cost, Plan& plan) : graph_(graph), cost_(cost), plan_(plan) {
    recomputed_.resize(graph.tensors.size());
    for (size_t t = 0; t < graph.tensors.size(); ++t)
      recomputed_[t] = is_recomputed(graph, plan, static_cast<TensorId>(t));
    find_regions();
  }

  /// Chooses the results of collectives that are kept. Takes results with the most saved seconds per byte first, until
  /// the budget of bytes of their region is used up.
  void choose(bool explains) {
    std::vector<Result> results = collectives();
    std::stable_sort(results.begin(), results.end(), [](const Result& a, const Result& b) {
      return a.seconds * static_cast<double>(b.bytes) > b.seconds * static_cast<double>(a.bytes);
    });
    std::map<int, int64_t> left = saved_bytes();
    for (auto& [region, bytes] : left) bytes /= kSavedPerKeptByte;
    std::vector<Result> repeated;
    std::erase_if(results, [&](const Result& result) {
      int64_t& budget = left[region_of(result.tensor)];
      if (result.bytes > budget) {
        repeated.push_back(result);
        return true;
      }
      budget -= result.bytes;
      plan_.kept[result.tensor].push_back(result.layout);
      return false;
    });
    if (!explains) return;
    explain(results, kKeeps);
    explain(repeated, kRepeats);
  }

 private:
  const Node& maker(TensorId tensor) const { return graph_.nodes[graph_.tensors[tensor].producer]; }

  /// True if the virtual stage of `reader` recomputes input i of this node.
  bool makes_again(const Node& reader, size_t i) const {
    const TensorId tensor = reader.inputs[i];
    return recomputed_[tensor] && plan_.virtual_stage_of(maker(tensor)) == plan_.virtual_stage_of(reader);
  }

  Layout made(TensorId tensor) const {
    const Node& node = maker(tensor);
    const auto output = std::find(node.outputs.begin(), node.outputs.end(), tensor) - node.outputs.begin();
    return output_layout(graph_, plan_, node, static_cast<int>(output));
  }

  /// Joins the layers of each region (union-find): a recomputed layer and the recomputed layers whose outputs it reads.
  void find_regions() {
    parent_.resize(graph_.layers.size());
    std::iota(parent_.begin(), parent_.end(), 0);
    for (const Node& node : graph_.nodes) {
      const bool again =
          std::any_of(node.outputs.begin(), node.outputs.end(), [&](TensorId t) { return recomputed_[t]; });
      if (node.phase != Phase::forward || !again) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (makes_again(node, i)) parent_[root(maker(node.inputs[i]).layer)] = root(node.layer);
    }
  }
  int root(int layer) {
    while (parent_[layer] != layer) layer = parent_[layer] = parent_[parent_[layer]];
    return layer;
  }
  int region_of(TensorId tensor) { return root(maker(tensor).layer); }

  /// Describes the tensor in `layout`: the redistribution that computes it, its seconds, and its bytes per rank.
  Result result(TensorId tensor, Layout layout) const {
    const Tensor& t = graph_.tensors[tensor];
    Result r{.tensor = tensor, .layout = std::move(layout)};
    r.steps = plan_redistribution(plan_.mesh, t.shape, t.dtype, made(tensor), r.layout, cost_);
    r.seconds = redistribution_seconds(plan_.mesh, t.shape, t.dtype, r.steps, cost_);
    r.bytes = num_elements(r.layout.local_shape(plan_.mesh, t.shape)) * byte_size(t.dtype);
    return r;
  }

  /// Tensors that the backward pass would move again: inputs of its nodes, and inputs of the nodes that recompute
  /// those. Only in layouts that the forward pass needs too.
  std::vector<Result> collectives() {
    std::set<std::pair<TensorId, Layout>> forward;
    for (const Node& node : graph_.nodes) {
      if (node.phase != Phase::forward) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (makes_again(node, i))
          forward.emplace(node.inputs[i], input_layout(graph_, plan_, node, static_cast<int>(i)));
    }
    std::vector<Result> found;
    std::set<std::pair<TensorId, Layout>> wanted;
    std::set<NodeId> again;
    std::vector<const Node*> readers;
    for (const Node& node : graph_.nodes)
      if (node.phase == Phase::backward) readers.push_back(&node);
    for (size_t next = 0; next < readers.size(); ++next) {
      const Node& reader = *readers[next];
      for (size_t i = 0; i < reader.inputs.size(); ++i) {
        if (!makes_again(reader, i)) continue;
        const TensorId tensor = reader.inputs[i];
        Layout layout = input_layout(graph_, plan_, reader, static_cast<int>(i));
        if (again.insert(graph_.tensors[tensor].producer).second) readers.push_back(&maker(tensor));
        if (!wanted.emplace(tensor, layout).second || !forward.contains({tensor, layout})) continue;
        Result moved = result(tensor, std::move(layout));
        if (moved.is_collective()) found.push_back(std::move(moved));
      }
    }
    return found;
  }

  /// Returns for each region the bytes that recompute saves: tensors that backward nodes read and that would otherwise
  /// be kept.
  std::map<int, int64_t> saved_bytes() {
    std::map<int, int64_t> saved;
    std::set<std::pair<TensorId, Layout>> counted;
    for (const Node& node : graph_.nodes) {
      if (node.phase != Phase::backward) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (!makes_again(node, i)) continue;
        const TensorId tensor = node.inputs[i];
        Layout layout = input_layout(graph_, plan_, node, static_cast<int>(i));
        if (!counted.emplace(tensor, layout).second) continue;
        saved[region_of(tensor)] += result(tensor, std::move(layout)).bytes;
      }
    }
    return saved;
  }

  /// Appends to the reason of a layer which collectives are kept or repeated, such as "; recompute repeats all_gather".
  void explain(const std::vector<Result>& results, std::string_view what) {
    for (const Result& result : results) {
      std::vector<std::string> steps;
      for (const RedistributionStep& step : result.steps) steps.emplace_back(to_string(step.kind));
      plan_.layers[maker(result.tensor).layer].reason += fmt::format("; {} {}", what, join(steps));
    }
  }

  const Graph& graph_;
  const CostModel& cost_;
  Plan& plan_;
  std::vector<bool> recomputed_;  // by tensor
  std::vector<int> parent_;       // by layer: union-find of regions
};

}  // namespace

bool is_recomputed(const Graph& graph, const Plan& plan, TensorId tensor) {
  const NodeId producer = graph.tensors[tensor].producer;
  if (producer < 0) return false;
  const Node& node = graph.nodes[producer];
  if (node.phase != Phase::forward || get_op(node.op).kernel.updates_input != 0) return false;  // state changes once
  if (plan.layers[node.layer].recompute) return true;
  if (get_op(node.op).runs_again) return true;
  // A reshape is a view: keeping it would keep the tensor it views. The parts of a tensor, such as the queries, keys
  // and values of packed heads, take its bytes again, and a copy makes them.
  const OpDef& op = get_op(node.op);
  if (!op.is_view && &op != &split_op) return false;
  const NodeId viewed = graph.tensors[node.inputs[0]].producer;
  return viewed >= 0 && plan.virtual_stage_of(graph.nodes[viewed]) == plan.virtual_stage_of(node) &&
         is_recomputed(graph, plan, node.inputs[0]);
}

void choose_kept_results(const Graph& graph, const CostModel& cost, bool explains, Plan& plan) {
  const bool moves = plan.mesh.size() > 1 && !plan.has_local_tensors();
  const bool recomputes =
      std::any_of(plan.layers.begin(), plan.layers.end(), [](const LayerPlan& layer) { return layer.recompute; });
  if (moves && recomputes && graph.loss >= 0) KeptResults(graph, cost, plan).choose(explains);
}

void repeat_kept_results(Plan& plan) {
  plan.kept.clear();
  for (LayerPlan& layer : plan.layers) replace_all(layer.reason, kKeeps, kRepeats);
}

}  // namespace trainctl
