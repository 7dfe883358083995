// See the header.
#include "engine/plan/row_exchange.h"

#include <algorithm>

#include "engine/ops/attention/key_exchange.h"
#include "engine/ops/attention/score_terms.h"
#include "engine/ops/row_order.h"

namespace trainctl {

Axes exchange_axes(const Graph& graph, const Plan& plan, const Node& node) {
  if (!node.attrs.flag(kExchangesKeys) || plan.hybrid()) return {};
  const int q = node.phase == Phase::backward ? 1 : 0;
  return input_layout(graph, plan, node, q).dims[1];
}

bool exchanges_keys(const Graph& graph, const Plan& plan, const Node& node) {
  if (!node.attrs.flag(kExchangesKeys)) return false;
  return node.attrs.integer(kRowOrder, 0) > 1 || !exchange_axes(graph, plan, node).empty();
}

bool has_balanced_ring(const Node& node) {
  if (!node.attrs.flag("causal")) return true;
  const bool is_grad = node.phase == Phase::backward;
  const size_t others = is_grad ? 3 : 0;  // dy, out and logs
  const bool masks_keys =
      node.inputs.size() - others - extra_inputs(node.attrs) == 4 && node.attrs.text("mask") != "documents";
  return node.attrs.integer(kRowOrder, 0) > 1 && node.attrs.integer("window", 0) == 0 && !masks_keys;
}

bool has_uneven_ring(const Graph& graph, const Plan& plan) {
  return plan.context_method == ContextMethod::ring &&
         std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
           return !exchange_axes(graph, plan, node).empty() && !has_balanced_ring(node);
         });
}

}  // namespace trainctl
