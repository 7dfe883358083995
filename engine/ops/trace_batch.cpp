// Follows the rows of the batch through the nodes of a graph, using only their rules.
#include "engine/ops/trace_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "engine/ops/expect.h"
#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

void set_sized(BatchRows& batch, size_t dim) { batch.sized |= uint64_t{1} << dim; }

/// The least number of elements, at least `least`, after which a dim ends in both shapes.
int64_t common_boundary(const Shape& from, const Shape& to, int64_t least) {
  std::set<int64_t> boundaries;
  int64_t product = 1;
  for (int64_t size : from) boundaries.insert(product *= size);
  product = 1;
  for (int64_t size : to)
    if (product *= size; product >= least && boundaries.contains(product)) break;
  return product;
}

/// Finds the rows of the batch after a reshape. Elements keep their order, so the rows are in the dim before which the
/// product of sizes is the same. Rows that are split between dims ([4, 6] -> [3, 8]) are in no dim; then every dim that
/// has a part of them depends on the batch.
BatchRows through_view(const BatchRows& in, const Shape& from, const Shape& to) {
  BatchRows out{.rows = in.rows};
  if (in.dim < 0) {
    // It is no longer known which dims depend on the batch: all might.
    for (size_t d = 0; d < to.size(); ++d)
      if (in.sized != 0) set_sized(out, d);
    return out;
  }
  int64_t before = in.outer;
  for (int d = 0; d < in.dim; ++d) before *= from[static_cast<size_t>(d)];
  int64_t lead = 1;
  for (size_t d = 0; d < to.size(); lead *= to[d++]) {
    if (lead * to[d] > before && lead < before * in.rows) set_sized(out, d);
    if (before % lead != 0 || to[d] % (before / lead * in.rows) != 0) continue;
    // A single row fits in several dims. A larger batch would be in the one in which the rows are the outermost part.
    if (out.dim >= 0 && out.outer == 1) continue;
    out.dim = static_cast<int>(d);
    out.outer = before / lead;
  }
  if (out.dim >= 0) {
    set_sized(out, static_cast<size_t>(out.dim));
    return out;
  }
  const int64_t end = common_boundary(from, to, before * in.rows);
  lead = 1;
  for (size_t d = 0; d < to.size() && lead < end; lead *= to[d++])
    if (lead * to[d] > before) set_sized(out, d);
  return out;
}

/// hybrid_parallel's collectives keep the dims; one may grow by other ranks' rows, or shrink.
BatchRows through_collective(BatchRows batch, const Shape& from, const Shape& to) {
  if (batch.dim < 0) return batch;
  const auto d = static_cast<size_t>(batch.dim);
  if (from[d] != to[d] && batch.outer > 1) batch.dim = -1;
  batch.rows = batch.rows * to[d] / from[d];
  return batch;
}

/// The letters of one node whose sizes are the batch's.
class FactorsOfBatch {
 public:
  FactorsOfBatch(Graph& graph, const Node& node) : graph_(graph), node_(node), layer_(graph.layers[node.layer]) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const BatchRows& batch = tensor(i).batch;
      for (size_t d = 0; d < node.rule.inputs[i].size(); ++d) {
        const DimRule& dim = node.rule.inputs[i][d];
        if (static_cast<int>(d) == batch.dim && !dim.empty()) rows_.emplace(dim, batch);
        if (!batch.is_sized(d)) continue;
        for (int factor : dim) sized_.emplace(factor, std::pair(i, d));
      }
    }
  }

  void expect_fixed_weights() const {
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      const bool kept = tensor(i).kind == TensorKind::parameter || tensor(i).kind == TensorKind::state;
      for (size_t d = 0; kept && d < node_.rule.inputs[i].size(); ++d) {
        for (int factor : node_.rule.inputs[i][d])
          if (const auto from = sized_.find(factor); from != sized_.end()) depends(i, d, from->second);
      }
    }
  }

  BatchRows of_output(size_t o) const {
    BatchRows out;
    int places = 0;
    for (size_t d = 0; d < node_.rule.outputs[o].size(); ++d) {
      const DimRule& dim = node_.rule.outputs[o][d];
      for (int factor : dim)
        if (sized_.contains(factor)) set_sized(out, d);
      if (!rows_.contains(dim)) continue;
      const BatchRows& rows = rows_.at(dim);
      out.dim = static_cast<int>(d);
      out.outer = rows.outer;
      out.rows = rows.rows;
      ++places;
    }
    if (places > 1) out.dim = -1;  // a product of rows with rows: each element depends on two rows
    return out;
  }

  /// The number of rows that one output element depends on; 0 if it depends on one row or none.
  int64_t mixed_rows() const {
    int64_t rows = 0;
    const std::vector<int>& inner = node_.rule.inner;
    for (const auto& [dim, batch] : rows_) {
      for (int factor : dim) {
        const bool summed = (!node_.outputs.empty() && !is_in_outputs(factor)) ||
                            std::find(inner.begin(), inner.end(), factor) != inner.end();
        const Factor& of_dim = layer_.factors[static_cast<size_t>(factor)];
        const bool has_rows = of_dim.size > 1 || batch.rows == 1;
        if (summed || (!of_dim.cuttable && has_rows) || rows_.size() > 1) rows = std::max(rows, batch.rows);
      }
    }
    return rows;
  }

 private:
  const Tensor& tensor(size_t input) const { return graph_.tensors[node_.inputs[input]]; }

  bool is_in_outputs(int factor) const {
    return std::any_of(node_.rule.outputs.begin(), node_.rule.outputs.end(), [&](const TensorRule& rule) {
      return std::any_of(rule.begin(), rule.end(),
                         [&](const DimRule& dim) { return std::find(dim.begin(), dim.end(), factor) != dim.end(); });
    });
  }

  [[noreturn]] void depends(size_t weight, size_t dim, std::pair<size_t, size_t> from) const {
    const Tensor &w = tensor(weight), &x = tensor(from.first);
    shape_error(
        fmt::format("dim {} of {} {} would have the size of dim {} of {} {}, which is the batch. The shape of a "
                    "weight cannot depend on the batch, of which a layer processes only one micro-batch at a time; "
                    "move the batch to dim 0 before this layer",
                    dim, w.name, to_string(w.shape), from.second, x.name, to_string(x.shape)));
  }

  const Graph& graph_;
  const Node& node_;
  const Layer& layer_;
  std::map<DimRule, BatchRows> rows_;               ///< by the factors of their dim
  std::map<int, std::pair<size_t, size_t>> sized_;  ///< by factor, an input and its dim
};

}  // namespace

void trace_batch(Graph& graph, const Node& node) {
  const OpDef& op = get_op(node.op);
  if (op.is_view || op.collective) {
    const Tensor& in = graph.tensors[node.inputs[0]];
    Tensor& out = graph.tensors[node.outputs[0]];
    out.batch =
        op.is_view ? through_view(in.batch, in.shape, out.shape) : through_collective(in.batch, in.shape, out.shape);
    if (in.batch.dim >= 0 && out.batch.dim < 0) graph.layers[node.layer].mixed_rows = in.batch.rows;
    return;
  }
  const FactorsOfBatch factors(graph, node);
  factors.expect_fixed_weights();
  for (size_t o = 0; o < node.outputs.size(); ++o) graph.tensors[node.outputs[o]].batch = factors.of_output(o);
  if (node.attrs.flag(kAddsUp)) return;
  int64_t& mixed = graph.layers[node.layer].mixed_rows;
  mixed = std::max(mixed, factors.mixed_rows());
}

}  // namespace trainctl
