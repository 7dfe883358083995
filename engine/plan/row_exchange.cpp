// Nodes of attention whose ranks exchange keys and values, because they share the rows of the sequences.
#include "engine/plan/row_exchange.h"

#include <map>
#include <set>
#include <tuple>
#include <utility>

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

RingSights::RingSights(const Node& node, int64_t rows, int64_t ways)
    : is_causal_(node.attrs.flag("causal")),
      window_(node.attrs.integer("window", 0)),
      rows_(rows),
      ways_(ways),
      order_(RowOrder::of(node.attrs, rows)) {}

int64_t RingSights::position(int64_t index, size_t piece) const {
  return order_.position(index * (rows_ / ways_) + static_cast<int64_t>(piece) * piece_rows());
}

Sight RingSights::of(int64_t index, size_t queries, int64_t step, size_t keys) const {
  if (!is_causal_) return Sight::all;
  const int64_t rows = piece_rows(), first = position(index, queries);
  const int64_t key = position((index - step + ways_) % ways_, keys);
  if (key > first + rows - 1 || (window_ > 0 && key + rows - 1 + window_ <= first)) return Sight::none;
  const bool all = key + rows - 1 <= first && (window_ == 0 || key + window_ > first + rows - 1);
  return all ? Sight::all : Sight::some;
}

std::vector<Sight> RingSights::of_rank(int64_t index) const {
  std::vector<Sight> sights;
  for (int64_t step = 0; step < ways_; ++step)
    for (size_t queries = 0; queries < pieces(); ++queries)
      for (size_t keys = 0; keys < pieces(); ++keys) sights.push_back(of(index, queries, step, keys));
  return sights;
}

namespace {

/// Returns for each rank in stage which keys its queries see (Sight), in all rings that are not balanced. Empty if
/// there is no such ring.
std::vector<std::vector<Sight>> uneven_sights(const Graph& graph, const Plan& plan) {
  if (plan.context_method != ContextMethod::ring) return {};
  using Ring = std::tuple<Axes, int64_t, int64_t, int64_t, int64_t>;  // all that the sights of a rank depend on
  std::set<Ring> rings;
  std::vector<std::vector<Sight>> seen(static_cast<size_t>(plan.mesh.size()));
  for (const Node& node : graph.nodes) {
    const Axes axes = exchange_axes(graph, plan, node);
    if (axes.empty() || has_balanced_ring(node)) continue;
    const int64_t rows = graph.tensors[node.inputs[node.phase == Phase::backward ? 1 : 0]].shape[1];
    const Attrs& attrs = node.attrs;
    if (!rings
             .insert(
                 {axes, rows, attrs.integer("window", 0), attrs.integer(kRowOrder, 0), attrs.integer(kRowGroups, 1)})
             .second)
      continue;
    const RingSights sights(node, rows, plan.mesh.ways(axes));
    for (int rank = 0; rank < plan.mesh.size(); ++rank) {
      const std::vector<Sight> own = sights.of_rank(plan.mesh.index(rank, axes));
      std::vector<Sight>& all = seen[static_cast<size_t>(rank)];
      all.insert(all.end(), own.begin(), own.end());
    }
  }
  return rings.empty() ? std::vector<std::vector<Sight>>{} : seen;
}

}  // namespace

std::vector<int> uneven_rings(const Graph& graph, const Plan& plan) {
  std::map<std::vector<Sight>, int> numbers;
  std::vector<int> of_ranks;
  for (std::vector<Sight>& own : uneven_sights(graph, plan))
    of_ranks.push_back(numbers.try_emplace(std::move(own), static_cast<int>(numbers.size())).first->second);
  return of_ranks;
}

int busiest_in_rings(const Graph& graph, const Plan& plan) {
  int busiest = 0;
  int64_t most = 0;
  const std::vector<std::vector<Sight>> seen = uneven_sights(graph, plan);
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    int64_t halves = 0;
    for (const Sight sight : seen[rank]) halves += sight == Sight::all ? 2 : sight == Sight::some ? 1 : 0;
    if (halves <= most) continue;
    most = halves;
    busiest = static_cast<int>(rank);
  }
  return busiest;
}

}  // namespace trainctl
