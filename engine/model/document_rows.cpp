// Rows of documents that ranks share (parallel.context): gives ops that know positions only within documents the order
// of the rows.
#include "engine/model/document_rows.h"

#include <algorithm>

#include "engine/ops/attention/score_terms.h"
#include "engine/ops/row_order.h"

namespace trainctl {
namespace {

constexpr int64_t kMostGroups = 4;  ///< work differs by at most about a tenth then
/// A ring has a call for each pair of pieces, in each of as many steps as there are ranks.
constexpr int64_t kMostCallsOfRing = 300;

/// The input with the first row of each row's document; -1: there is none.
TensorId documents_of(const Graph& graph) {
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    if (graph.tensors[t].kind == TensorKind::input && graph.tensors[t].name == "documents")
      return static_cast<TensorId>(t);
  return -1;
}

/// True if all ops that know positions read documents, and no other op does, nor dropout, which depends on the position
/// in the row: then the order of documents changes nothing.
bool knows_only_documents(const Graph& graph, TensorId documents) {
  return std::all_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    if (node.attrs.number(kScoreDropout, 0) > 0) return false;
    const bool reads = std::find(node.inputs.begin(), node.inputs.end(), documents) != node.inputs.end();
    const bool knows_positions = node.attrs.integer(kRowOrder, 0) > 1;
    return reads == knows_positions || (knows_positions && node.phase == Phase::backward);
  });
}

/// The most groups whose pieces have a whole number of rows.
int64_t groups_of(const ParallelSpec& parallel, int64_t rows) {
  const int64_t ranks = parallel.context;
  if (parallel.context_method == ContextMethod::ulysses) return 1;  // all rows are on one rank
  int64_t groups = kMostGroups;
  const auto calls = [&] { return ranks * (2 * groups * groups + groups); };
  const bool may_be_ring = parallel.context_method != ContextMethod::gather;
  while (groups > 1 && (rows % (2 * ranks * groups) != 0 || (may_be_ring && calls() > kMostCallsOfRing))) groups /= 2;
  return groups;
}

}  // namespace

void divide_documents(const ParallelSpec& parallel, Graph& graph) {
  const TensorId documents = documents_of(graph);
  if (documents < 0 || !knows_only_documents(graph, documents)) return;
  const int64_t groups = groups_of(parallel, graph.tensors[static_cast<size_t>(documents)].shape[1]);
  for (Node& node : graph.nodes)
    if (node.attrs.integer(kRowOrder, 0) > 1) node.attrs.set(kRowGroups, groups);
}

}  // namespace trainctl
