// Builds the backward pass by a walk over the forward nodes in reverse order. If several nodes read an activation, its
// gradient contributions are added up in its producer's layer, just before the producer's own backward:
//
//   a = f(x);  b = g(a);  c = h(a)      grad.a.0 = h', grad.a.1 = g', grad.a = grad.a.0 + grad.a.1, then f'
#include "engine/model/backward.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/graph/contraction.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/named_ops.h"

namespace trainctl {

class BackwardPass {
 public:
  explicit BackwardPass(Graph& graph)
      : graph_(graph), num_forward_(graph.nodes.size()), num_tensors_(graph.tensors.size()) {}

  void run() {
    find_needs();
    count_uses();
    for (size_t n = num_forward_; n-- > 0;) visit(static_cast<NodeId>(n));
    collect_updates();
  }

 private:
  /// A tensor needs a gradient if a trained parameter affects it through ops that have one.
  void find_needs() {
    needs_.resize(num_tensors_, false);
    for (size_t t = 0; t < num_tensors_; ++t)
      needs_[t] = graph_.tensors[t].kind == TensorKind::parameter && !graph_.tensors[t].frozen;
    for (size_t n = 0; n < num_forward_; ++n) {
      const Node& node = graph_.nodes[n];
      if (get_op(node.op).backward == nullptr) continue;
      bool needs = false;
      for (size_t i = 0; i < node.inputs.size(); ++i) needs = needs || needs_grad(node, i);
      for (TensorId output : node.outputs) needs_[output] = needs && graph_.tensors[output].dtype != DType::i32;
    }
  }

  static bool may_flow(const Node& node, size_t input) { return (get_op(node.op).no_gradient >> input & 1) == 0; }
  bool needs_grad(const Node& node, size_t input) const { return needs_[node.inputs[input]] && may_flow(node, input); }

  /// The loss, or an auxiliary one.
  bool is_loss(TensorId tensor) const {
    const auto adds = [&](const Metric& metric) { return metric.adds_to_loss && metric.tensor == tensor; };
    return tensor == graph_.loss || std::any_of(graph_.metrics.begin(), graph_.metrics.end(), adds);
  }

  /// The number of operands of nodes on the path to the loss that read each tensor.
  void count_uses() {
    uses_.resize(num_tensors_, 0);
    for (size_t n = num_forward_; n-- > 0;) {
      const Node& node = graph_.nodes[n];
      if (get_op(node.op).backward == nullptr) continue;
      bool leads = false;
      for (TensorId output : node.outputs) leads = leads || is_loss(output) || uses_[output] > 0;
      if (!leads) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (may_flow(node, i)) ++uses_[node.inputs[i]];
    }
    contributions_.resize(num_tensors_);
    named_.resize(num_tensors_, 0);
  }

  /// Adds the backward nodes of a forward node, if the loss depends on its outputs and one of its inputs needs a
  /// gradient.
  void visit(NodeId id) {
    const Node node = graph_.nodes[id];
    const OpDef& op = get_op(node.op);
    if (op.backward == nullptr) return;
    std::vector<TensorId> out_grads;
    bool reached = false, needed = false;
    for (TensorId output : node.outputs) {
      out_grads.push_back(sum_contributions(output));
      reached = reached || out_grads.back() >= 0 || is_loss(output);
    }
    std::vector<std::string> names;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const bool needs = needs_grad(node, i);
      needed = needed || needs;
      names.push_back(reached && needs ? gradient_name(node.inputs[i]) : "");
    }
    if (!reached || !needed) return;
    GradBuilder builder(graph_, id, out_grads, names);
    op.backward(builder);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!needs_grad(node, i)) continue;
      check(builder.in_grads()[i] >= 0, node.op + ": its backward omits a gradient");
      contributions_[node.inputs[i]].push_back(builder.in_grads()[i]);
    }
  }

  std::string gradient_name(TensorId tensor) {
    const std::string& name = graph_.tensors[tensor].name;
    return uses_[tensor] > 1 ? fmt::format("grad.{}.use{}", name, named_[tensor]++) : "grad." + name;
  }

  /// The complete gradient of an activation; -1 if it has none.
  TensorId sum_contributions(TensorId tensor) {
    std::vector<TensorId>& parts = contributions_[tensor];
    if (parts.empty()) return -1;
    // A plan may leave contributions of products partial sums, so these are added up first.
    if (parts.size() > 2)
      std::stable_partition(parts.begin(), parts.end(),
                            [&](TensorId part) { return contracts(graph_.nodes[graph_.tensors[part].producer].rule); });
    TensorId sum = parts[0];
    for (size_t i = 1; i < parts.size(); ++i) sum = add(tensor, sum, parts[i], i + 1 == parts.size() ? 0 : i);
    return sum;
  }

  /// One link of the chain of additions; the last one (number 0) has the plain name.
  TensorId add(TensorId of, TensorId a, TensorId b, size_t number) {
    const NodeId producer = graph_.tensors[of].producer;
    const std::vector<TensorId>& made = graph_.nodes[producer].outputs;
    const auto output = static_cast<size_t>(std::find(made.begin(), made.end(), of) - made.begin());
    const TensorRule rule = graph_.nodes[producer].rule.outputs[output];
    const std::string suffix = number == 0 ? "" : fmt::format(".sum{}", number);

    Tensor sum{.name = fmt::format("grad.{}{}", graph_.tensors[of].name, suffix), .shape = graph_.tensors[of].shape};
    sum.dtype = graph_.tensors[a].dtype;
    sum.kind = TensorKind::gradient;
    sum.producer = static_cast<NodeId>(graph_.nodes.size());
    graph_.tensors.push_back(sum);
    Node node{.name = fmt::format("{}.grad_sum{}", graph_.tensors[of].name, suffix), .op = add_op.name};
    node.inputs = {a, b};
    node.outputs = {static_cast<TensorId>(graph_.tensors.size() - 1)};
    node.rule = {{rule, rule}, {rule}};
    node.layer = graph_.nodes[producer].layer;
    node.phase = Phase::backward;
    graph_.nodes.push_back(node);
    return node.outputs[0];
  }

  void collect_updates() {
    for (size_t t = 0; t < num_tensors_; ++t) {
      if (graph_.tensors[t].kind != TensorKind::parameter || contributions_[t].empty()) continue;
      graph_.updates.push_back({static_cast<TensorId>(t), contributions_[t]});
    }
  }

  Graph& graph_;
  const size_t num_forward_, num_tensors_;
  std::vector<bool> needs_;
  std::vector<int> uses_, named_;
  std::vector<std::vector<TensorId>> contributions_;
};

void build_backward(Graph& graph) { BackwardPass(graph).run(); }

}  // namespace trainctl
