// Attention whose ranks share the rows of a sequence (ops/attention/key_exchange.h): each rank has the queries, keys
// and values of its rows, and its queries need all keys.
//
//   gather   all_gather k, v -> attention; the gradient gathers them again -> attention_grad -> reduce_scatter dk, dv
//
//   ring     rank i of n has block i - s of the keys in step s:
//
//              step 0          step 1              step n-1
//     k, v     i -> i+1        i-1 -> i+1    …     i+1
//     kernel   q, block i      q, block i-1        q, block i+1       parts are merged, those of dq are added
//     dk, dv   i -> i+1        i-1 -> i+1          i+1 -> i+1         each rank adds its part before it passes them on
//
//   ulysses  each rank has all rows of some heads, so nothing is exchanged here
//
// The gradient of a bias of the scores gathers k and v for every method.
//
// Kernels know rows by position. If rows are stored in the order of ranks (ops/row_order.h), whole sequences are
// reordered, and a rank's own rows are pieces, of which each has a call of its own:
//
//   gather   each piece of the queries with all keys
//   ring     each piece of the queries with each piece of the block, except pairs that causal or a window hides
#include "engine/compile/lower/key_exchange.h"

namespace trainctl {
namespace {

class KeyGather : public KeyExchange {
 public:
  using KeyExchange::KeyExchange;

  /// Emits one call over whole sequences: each rank has all rows of its heads, so no keys are exchanged.
  void whole_sequences() {
    std::vector<View> inputs;
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      const bool is_logs = is_grad() && i == logs_at();  // logs are kept in the order of positions
      const bool are_sinks = has_sinks() && i + 1 == node_.inputs.size();
      const bool is_bias = has_bias() && i == bias_at();  // also in the order of positions
      inputs.push_back(is_logs || are_sinks || is_bias ? own(i) : reordered(own(i)));
    }
    std::vector<View> results, outputs;
    for (size_t o = 0; o < node_.outputs.size(); ++o) {
      const bool is_logs = !is_grad() && o == 1;
      results.push_back(new_output(o));
      outputs.push_back(is_logs || !is_ordered() ? results[o] : scratch_like(results[o]));
    }
    l_.emit_kernel(node_.name, kernel_, attrs_, std::move(inputs), outputs);
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (outputs[o].buffer != results[o].buffer) reorder(outputs[o], results[o], true);
      keep(o, std::move(results[o]));
    }
  }

  void gather() {
    const KeyBlock keys{gathered(k_at()), gathered(v_at())};
    const std::vector<View> whole_mask = mask();
    const Queries all = queries();
    if (is_bias_grad()) return gather_bias_grad(all, keys, whole_mask);
    if (!is_ordered() && attrs_.flag("causal")) attrs_.set(kConsecutiveRows, true);
    is_grad() ? gather_grad(all, keys, whole_mask) : gather_forward(all, keys, whole_mask);
  }

 private:
  void gather_forward(const Queries& all, const KeyBlock& keys, const std::vector<View>& whole_mask) {
    const View out = new_output(0), logs = new_output(1);
    const std::vector<View> outs = blank_pieces(out, index_), all_logs = blank_pieces(logs, index_, kLogRowDim);
    for (size_t p = 0; p < outs.size(); ++p)
      call(piece_name(p, num_pieces()), attrs_, all, p, keys, whole_mask, {outs[p], all_logs[p]});
    join(outs, out);
    join(all_logs, logs, kLogRowDim);
    keep(0, out);
    keep(1, logs);
  }

  /// Emits the gradient for the method gather. dk and dv of all rows are summed over the pieces of this rank's queries.
  /// A reduce_scatter then sums them over ranks, and each rank gets the rows of its own keys.
  void gather_grad(const Queries& all, const KeyBlock& keys, const std::vector<View>& whole_mask) {
    const View dq = new_output(0);
    const std::vector<View> dqs = blank_pieces(dq, index_);
    KeyBlock sums{l_.new_tensor(node_.outputs[1], of_all_rows(1)), l_.new_tensor(node_.outputs[2], of_all_rows(2))};
    for (size_t p = 0; p < dqs.size(); ++p) {
      const KeyBlock part = p == 0 ? sums : KeyBlock{scratch_like(sums.k), scratch_like(sums.v)};
      call(piece_name(p, num_pieces()), attrs_, all, p, keys, whole_mask, {dqs[p], part.k, part.v});
      if (p > 0) add(part.k, sums.k), add(part.v, sums.v);
    }
    join(dqs, dq);
    keep(0, dq);
    scatter(1, reordered(sums.k, true));
    scatter(2, reordered(sums.v, true));
  }

  /// Emits the gradient of a bias of the scores, whose rows are in the order of positions. Each rank computes the terms
  /// of its own rows and zeroes the other rows.
  void gather_bias_grad(const Queries& all, const KeyBlock& keys, const std::vector<View>& whole_mask) {
    const View dbias = new_output(0);
    call("", attrs_, all, 0, keys, whole_mask, {dbias});
    keep(0, dbias);
  }

  /// The layout of this rank's terms of the gradients of all keys.
  LayoutId of_all_rows(size_t output) {
    Layout layout = l_.layout(with_whole_rows(l_.node_outputs[id_][output]));
    layout.partial.insert(layout.partial.end(), axes_.begin(), axes_.end());
    std::sort(layout.partial.begin(), layout.partial.end());
    return l_.id(layout);
  }

  void scatter(size_t output, View view) {
    const TensorId tensor = node_.outputs[output];
    for (const RedistributionStep& step : l_.way(tensor, of_all_rows(output), l_.node_outputs[id_][output]).steps)
      view = redistribute(l_, tensor, view, step);
    keep(output, std::move(view));
  }
};

}  // namespace

void exchange_keys(Lowering& l, NodeId node) {
  const bool whole_sequences = exchange_axes(l.c.graph, l.c.plan, l.c.graph.nodes[static_cast<size_t>(node)]).empty();
  if (whole_sequences) return KeyGather(l, node).whole_sequences();
  const bool is_ring = l.c.plan.context_method == ContextMethod::ring &&
                       !computes_score_bias_grad(l.c.graph.nodes[static_cast<size_t>(node)]);
  is_ring ? pass_keys_around(l, node) : KeyGather(l, node).gather();
}

}  // namespace trainctl
