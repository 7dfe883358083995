// A node of attention whose ranks share the rows of a sequence: its operands, the pieces of rows that its kernels are
// called for, and the calls. exchange_keys.cpp and key_ring.cpp lower it with these.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "engine/compile/lower/lowering.h"
#include "engine/compile/rank_classes.h"
#include "engine/ops/attention/key_exchange.h"
#include "engine/ops/attention/score_terms.h"
#include "engine/ops/attention/sinks.h"
#include "engine/ops/named_ops.h"
#include "engine/ops/op_def.h"
#include "engine/ops/program_kernels.h"
#include "engine/ops/row_order.h"
#include "engine/plan/row_exchange.h"

namespace trainctl {

inline constexpr size_t kRowDim = 1, kLogRowDim = 3;

/// Keys and values of a block, or their gradients.
struct KeyBlock {
  View k, v;
};

/// The node computes the gradient of a bias of attention's scores.
inline bool computes_score_bias_grad(const Node& node) { return &get_op(node.op) == &attention_score_bias_grad_op; }

class KeyExchange {
 public:
  KeyExchange(Lowering& l, NodeId id)
      : l_(l), id_(id), node_(l.c.graph.nodes[id]), kernel_(get_op(node_.op).kernel), attrs_(node_.attrs) {
    axes_ = exchange_axes(l.c.graph, l.c.plan, node_);
    ways_ = l.c.plan.mesh.ways(axes_);
    index_ = l.c.plan.mesh.index(l.c.rank_in_stage, axes_);
    rows_ = l.c.graph.tensors[node_.inputs[q_at()]].shape[kRowDim];
    order_ = RowOrder::of(attrs_, rows_);
    for (const char* name : {kRowOrder, kRowGroups}) attrs_.erase(name);
    const size_t others = is_grad() ? 3 : 0;  // dy, out and logs
    has_mask_ = node_.inputs.size() - others - extra_inputs(node_.attrs) == 4;
  }

 protected:
  // ---- operands

  bool is_grad() const { return node_.phase == Phase::backward; }
  bool is_bias_grad() const { return computes_score_bias_grad(node_); }
  bool has_sinks() const { return node_.attrs.flag(kSinks); }
  bool has_bias() const { return node_.attrs.has(kScoreBias); }
  size_t bias_at() const { return v_at() + (has_mask_ ? 2 : 1); }
  bool is_ordered() const { return order_.piece > 0; }
  size_t q_at() const { return is_grad() ? 1 : 0; }
  size_t k_at() const { return q_at() + 1; }
  size_t v_at() const { return q_at() + 2; }
  size_t out_at() const { return node_.inputs.size() - 2; }
  size_t logs_at() const { return node_.inputs.size() - 1; }

  View own(size_t input) { return bring(l_, node_.inputs[input], l_.node_inputs[id_][input]); }
  View new_output(size_t output) { return l_.new_tensor(node_.outputs[output], l_.node_outputs[id_][output]); }
  void keep(size_t output, View view) {
    l_.have(node_.outputs[output]).push_back({l_.node_outputs[id_][output], std::move(view)});
  }

  View scratch_like(const View& view) {
    View copy = view;
    copy.buffer = l_.c.new_buffer(BufferKind::scratch, view.operand.bytes());
    copy.operand.offset = 0;
    copy.operand.accumulate = false;
    return copy;
  }

  LayoutId with_whole_rows(LayoutId layout) {
    Layout whole = l_.layout(layout);
    whole.dims[kRowDim] = without(whole.dims[kRowDim], axes_);
    return l_.id(whole);
  }

  /// Reorders the rows of a whole sequence from the order of ranks to the order of positions. With `to_order`, reorders
  /// from positions to ranks.
  View reordered(const View& view, bool to_order = false) {
    if (!is_ordered()) return view;
    View result = scratch_like(view);
    result.operand.tensor += to_order ? " in order of ranks" : " by position";
    reorder(view, result, to_order);
    return result;
  }
  void reorder(const View& from, const View& to, bool to_order) {
    Attrs attrs{{kRowOrder, order_.ranks}};
    if (node_.attrs.has(kRowGroups)) attrs.set(kRowGroups, order_.groups);
    if (to_order) attrs.set("to_order", true);
    l_.emit_kernel("reorder " + from.operand.tensor, reorder_rows_kernel, std::move(attrs), {from}, {to},
                   Purpose::redistribute);
  }

  /// Gathers all rows of an input, in the order of positions. The backward pass calls this again instead of keeping the
  /// gathered rows, which takes less memory.
  View gathered(size_t input) {
    const TensorId tensor = node_.inputs[input];
    const LayoutId whole = with_whole_rows(l_.node_inputs[id_][input]);
    const auto is_whole = [&](const Located& value) { return value.layout == whole; };
    const std::vector<Located>& before = l_.have(tensor);
    const bool is_there = std::any_of(before.begin(), before.end(), is_whole);
    const View view = bring(l_, tensor, whole);
    if (!is_there) std::erase_if(l_.have(tensor), is_whole);
    return reordered(view);
  }

  /// The mask of all rows, by position.
  std::vector<View> mask() {
    if (!has_mask_) return {};
    const size_t at = v_at() + 1;
    return {reordered(bring(l_, node_.inputs[at], with_whole_rows(l_.node_inputs[id_][at])))};
  }

  // ---- pieces of this rank's rows

  int64_t num_pieces() const { return is_ordered() ? 2 * order_.groups : 1; }
  int64_t piece_rows() const { return rows_ / ways_ / num_pieces(); }
  /// The position of the first row of a piece of rank `index` of the ring.
  int64_t position(int64_t index, int64_t piece) const {
    return order_.position(index * (rows_ / ways_) + piece * piece_rows());
  }

  View blank_piece(const View& whole, size_t dim, int64_t index, int64_t piece) {
    View view = whole;
    view.operand.shape[dim] /= num_pieces();
    view.operand.global_offset[dim] = position(index, piece);
    view.operand.tensor += ".piece" + std::to_string(piece);
    return scratch_like(view);
  }

  /// The pieces of rows of rank `index`.
  std::vector<View> pieces_of(const View& whole, int64_t index, size_t dim = kRowDim) {
    std::vector<View> pieces;
    if (!is_ordered()) return {whole};
    for (int64_t p = 0; p < num_pieces(); ++p) pieces.push_back(blank_piece(whole, dim, index, p));
    const Ints sizes(static_cast<size_t>(num_pieces()), whole.operand.shape[dim] / num_pieces());
    l_.emit_kernel("split " + whole.operand.tensor, split_op.kernel,
                   {{"dim", static_cast<int64_t>(dim)}, {"sizes", sizes}}, {whole}, pieces, Purpose::redistribute);
    return pieces;
  }
  /// Makes the views into which kernels write the pieces of `whole`.
  std::vector<View> blank_pieces(const View& whole, int64_t index, size_t dim = kRowDim) {
    if (!is_ordered()) return {whole};
    std::vector<View> pieces;
    for (int64_t p = 0; p < num_pieces(); ++p) pieces.push_back(blank_piece(whole, dim, index, p));
    return pieces;
  }
  void join(const std::vector<View>& pieces, const View& whole, size_t dim = kRowDim) {
    if (!is_ordered()) return;
    l_.emit_kernel("join " + whole.operand.tensor, concat_op.kernel, {{"dim", static_cast<int64_t>(dim)}}, pieces,
                   {whole}, Purpose::redistribute);
  }

  /// The operands of attention for each piece of this rank's queries, except keys, values and mask. dy, out and logs
  /// are inputs of the gradient only.
  struct Queries {
    std::vector<View> dy, q, out, logs;
  };
  Queries queries() {
    Queries all;
    all.q = pieces_of(own(q_at()), index_);
    if (!is_grad()) return all;
    all.dy = pieces_of(own(0), index_);
    all.out = pieces_of(own(out_at()), index_);
    all.logs = pieces_of(own(logs_at()), index_, kLogRowDim);
    return all;
  }

  void call(const std::string& suffix, const Attrs& attrs, const Queries& queries, size_t piece, const KeyBlock& keys,
            const std::vector<View>& mask, std::vector<View> outputs) {
    std::vector<View> inputs;
    if (is_grad()) inputs.push_back(queries.dy[piece]);
    inputs.insert(inputs.end(), {queries.q[piece], keys.k, keys.v});
    inputs.insert(inputs.end(), mask.begin(), mask.end());
    if (has_bias()) inputs.push_back(own(bias_at()));  // the bias has all rows and keys, in the order of positions
    if (attrs.flag(kSinks)) inputs.push_back(own(node_.inputs.size() - 1));
    if (is_grad()) inputs.insert(inputs.end(), {queries.out[piece], queries.logs[piece]});
    l_.emit_kernel(node_.name + suffix, kernel_, attrs, std::move(inputs), std::move(outputs));
  }

  void add(const View& from, View to) {
    to.operand.accumulate = true;
    l_.emit_kernel("accumulate " + to.operand.tensor, accumulate_kernel, {}, {from}, {to});
  }

  static std::string piece_name(size_t piece, int64_t pieces) {
    return pieces == 1 ? "" : ".piece" + std::to_string(piece);
  }

  Lowering& l_;
  const NodeId id_;
  const Node& node_;
  const KernelDef& kernel_;
  Attrs attrs_;  ///< attributes of the kernels
  Axes axes_;
  int64_t ways_ = 1, index_ = 0;
  int64_t rows_ = 0;  ///< rows of the whole sequence
  RowOrder order_;
  bool has_mask_ = false;
};

/// Ranks pass blocks of keys around a ring (key_ring.cpp).
void pass_keys_around(Lowering& l, NodeId node);

}  // namespace trainctl
