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
// Kernels know rows by position. If rows are stored in the order of ranks (ops/row_order.h), whole sequences are
// reordered, and a rank's own rows are two pieces, of which each has a call of its own:
//
//   gather   each piece of the queries with all keys
//   ring     each piece of the queries with each piece of the block, except pairs that causal or a window hides
//
// If a ring is balanced, all of its ranks have the same program: of the two pairs of which each rank sees one, it has
// both, and the other one is idle. Blocks are named by the number of ranks that they have passed.
#include <algorithm>
#include <string>
#include <vector>

#include "engine/compile/lower/lowering.h"
#include "engine/compile/rank_classes.h"
#include "engine/ops/attention/key_exchange.h"
#include "engine/ops/attention/sinks.h"
#include "engine/ops/named_ops.h"
#include "engine/ops/op_def.h"
#include "engine/ops/program_kernels.h"
#include "engine/ops/row_order.h"
#include "engine/plan/row_exchange.h"

namespace trainctl {
namespace {

constexpr size_t kRowDim = 1, kLogRowDim = 3;

/// Keys and values of a block, or their gradients.
struct KeyBlock {
  View k, v;
};

class KeyExchange {
 public:
  KeyExchange(Lowering& l, NodeId id)
      : l_(l), id_(id), node_(l.c.graph.nodes[id]), kernel_(get_op(node_.op).kernel), attrs_(node_.attrs) {
    axes_ = exchange_axes(l.c.graph, l.c.plan, node_);
    ways_ = l.c.plan.mesh.ways(axes_);
    index_ = l.c.plan.mesh.index(l.c.rank_in_stage, axes_);
    rows_ = l.c.graph.tensors[node_.inputs[q_at()]].shape[kRowDim];
    order_ = RowOrder::of(attrs_, rows_);
    attrs_.erase(kRowOrder);
    const size_t others = is_grad() ? 3 : has_sinks() ? 1 : 0;  // dy, out and logs
    has_mask_ = node_.inputs.size() - others == 4;
  }

  void lower() {
    if (ways_ == 1) return whole_sequences();
    l_.c.plan.context_method == ContextMethod::ring ? ring() : gather();
  }

 private:
  // ---- operands

  bool is_grad() const { return node_.phase == Phase::backward; }
  bool has_sinks() const { return node_.attrs.flag(kSinks); }
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

  /// All rows by position, of rows in the order of ranks; with `to_order` the other way.
  View reordered(const View& view, bool to_order = false) {
    if (!is_ordered()) return view;
    View result = scratch_like(view);
    result.operand.tensor += to_order ? " in order of ranks" : " by position";
    reorder(view, result, to_order);
    return result;
  }
  void reorder(const View& from, const View& to, bool to_order) {
    Attrs attrs{{kRowOrder, node_.attrs.integer(kRowOrder, 0)}};
    if (to_order) attrs.set("to_order", true);
    l_.emit_kernel("reorder " + from.operand.tensor, reorder_rows_kernel, std::move(attrs), {from}, {to},
                   Purpose::redistribute);
  }

  /// All rows of an input by position. They are gathered again where they are needed again, which takes less memory.
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

  int64_t num_pieces() const { return is_ordered() ? 2 : 1; }
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
  /// Where kernels write the pieces of `whole`.
  std::vector<View> blank_pieces(const View& whole, int64_t index, size_t dim = kRowDim) {
    if (!is_ordered()) return {whole};
    return {blank_piece(whole, dim, index, 0), blank_piece(whole, dim, index, 1)};
  }
  void join(const std::vector<View>& pieces, const View& whole, size_t dim = kRowDim) {
    if (!is_ordered()) return;
    l_.emit_kernel("join " + whole.operand.tensor, concat_op.kernel, {{"dim", static_cast<int64_t>(dim)}}, pieces,
                   {whole}, Purpose::redistribute);
  }

  /// The operands of each piece of the queries except keys, values and mask.
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

  // ---- whole sequences: heads are cut, or nothing is

  void whole_sequences() {
    std::vector<View> inputs;
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      const bool is_logs = is_grad() && i == logs_at();  // kept by position
      const bool are_sinks = has_sinks() && i + 1 == node_.inputs.size();
      inputs.push_back(is_logs || are_sinks ? own(i) : reordered(own(i)));
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

  // ---- gather

  void gather() {
    const KeyBlock keys{gathered(k_at()), gathered(v_at())};
    const std::vector<View> whole_mask = mask();
    const Queries all = queries();
    is_grad() ? gather_grad(all, keys, whole_mask) : gather_forward(all, keys, whole_mask);
  }

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

  // ---- ring

  int neighbour(int64_t distance) const {
    const std::vector<int> ranks = l_.c.plan.mesh.group(l_.c.rank_in_stage, axes_);
    return l_.c.global_rank(l_.c.stage, ranks[static_cast<size_t>((index_ + distance + ways_) % ways_)]);
  }

  int64_t block_of(int64_t step) const { return (index_ - step + ways_) % ways_; }

  /// The keys of a piece that a piece of this rank's queries sees, as determined by their positions.
  enum class Sight : uint8_t { none, some, all };
  Sight sight(size_t queries, int64_t step, size_t keys) const {
    if (!attrs_.flag("causal")) return Sight::all;
    const int64_t rows = piece_rows(), window = attrs_.integer("window", 0);
    const int64_t first = position(index_, static_cast<int64_t>(queries));
    const int64_t key = position(block_of(step), static_cast<int64_t>(keys));
    if (key > first + rows - 1 || (window > 0 && key + rows - 1 + window <= first)) return Sight::none;
    const bool all = key + rows - 1 <= first && (window == 0 || key + window > first + rows - 1);
    return all ? Sight::all : Sight::some;
  }
  size_t pieces() const { return static_cast<size_t>(num_pieces()); }
  bool sees_block(int64_t step) const {
    for (size_t q = 0; q < pieces(); ++q)
      for (size_t k = 0; k < pieces(); ++k)
        if (sight(q, step, k) != Sight::none) return true;
    return false;
  }
  /// The attributes of the call for such a pair.
  Attrs attrs_of(Sight sight) const {
    Attrs attrs = attrs_;
    if (sight == Sight::all && attrs.flag("causal")) {
      attrs.set("causal", false);
      attrs.erase("window");
    }
    return attrs;
  }
  std::string pair_name(int64_t step, size_t q, size_t k) const {
    std::string name = ".step" + std::to_string(step);
    if (is_ordered()) name += ".piece" + std::to_string(q) + std::to_string(k);
    return name;
  }

  /// Both ends name the message by the tensor and the number of ranks that it has passed on arrival.
  void message(Opcode opcode, int64_t distance, const View& view, const std::string& tensor, int64_t passed) {
    Instruction i;
    i.opcode = opcode;
    i.name = std::string(to_string(opcode)) + " " + block_name(tensor, passed);
    i.peer = neighbour(distance);
    i.purpose = Purpose::redistribute;
    i.attrs = {{kRingAxes, Ints(axes_.begin(), axes_.end())}, {kRingStep, distance}};
    if (opcode == Opcode::send)
      l_.emit(std::move(i), {view}, {});
    else
      l_.emit(std::move(i), {}, {view});
  }
  static std::string block_name(const std::string& tensor, int64_t passed) {
    return tensor + ".hop" + std::to_string(passed);
  }
  /// `like`: this rank's own tensors, for their names. `step`: in which the block is sent, or used after its arrival.
  void send(const KeyBlock& like, const KeyBlock& block, int64_t step) {
    message(Opcode::send, 1, block.k, like.k.operand.tensor, step + 1);
    message(Opcode::send, 1, block.v, like.v.operand.tensor, step + 1);
  }
  void recv(const KeyBlock& like, const KeyBlock& block, int64_t step) {
    message(Opcode::recv, -1, block.k, like.k.operand.tensor, step);
    message(Opcode::recv, -1, block.v, like.v.operand.tensor, step);
  }

  /// Memory for the block that this rank has in the step.
  KeyBlock new_block(const KeyBlock& like, int64_t step) {
    KeyBlock block{scratch_like(like.k), scratch_like(like.v)};
    for (View* view : {&block.k, &block.v}) {
      view->operand.global_offset[kRowDim] = block_of(step) * (rows_ / ways_);
      view->operand.tensor = block_name(view->operand.tensor, step);
    }
    return block;
  }

  /// The block of the step after this one, empty after the last. Received before the kernels of the step in program
  /// order, so that its memory is not theirs.
  KeyBlock receive_next(const KeyBlock& mine, int64_t step) {
    if (step + 1 == ways_) return {};
    KeyBlock next = new_block(mine, step + 1);
    recv(mine, next, step + 1);
    return next;
  }
  KeyBlock pass_on(const KeyBlock& mine, const KeyBlock& block, int64_t step) {
    if (step + 1 < ways_) send(mine, block, step);
    return receive_next(mine, step);
  }

  void ring() {
    const std::vector<View> whole_mask = mask();
    const Queries all = queries();
    const KeyBlock mine{own(k_at()), own(v_at())};
    is_grad() ? ring_grad(all, mine, whole_mask) : ring_forward(all, mine, whole_mask);
  }

  /// The part of out and logs that one piece of the queries has so far.
  struct Sum {
    std::vector<View> parts;  ///< out and logs; empty: none yet
    int64_t left = 0;         ///< pairs that are still to come
  };

  void ring_forward(const Queries& all, const KeyBlock& mine, const std::vector<View>& whole_mask) {
    const View out = new_output(0), logs = new_output(1);
    const std::vector<View> outs = blank_pieces(out, index_), all_logs = blank_pieces(logs, index_, kLogRowDim);
    if (is_balanced())
      balanced_forward(all, mine, whole_mask, outs, all_logs);
    else
      uneven_forward(all, mine, whole_mask, outs, all_logs);
    join(outs, out);
    join(all_logs, logs, kLogRowDim);
    keep(0, out);
    keep(1, logs);
  }

  void uneven_forward(const Queries& all, const KeyBlock& mine, const std::vector<View>& whole_mask,
                      const std::vector<View>& outs, const std::vector<View>& all_logs) {
    std::vector<Sum> sums(pieces());
    for (int64_t step = 0; step < ways_; ++step)
      for (size_t q = 0; q < pieces(); ++q)
        for (size_t k = 0; k < pieces(); ++k) sums[q].left += sight(q, step, k) != Sight::none ? 1 : 0;
    KeyBlock block = mine;
    for (int64_t step = 0; step < ways_; ++step) {
      const KeyBlock next = pass_on(mine, block, step);
      if (sees_block(step)) {
        const std::vector<View> ks = pieces_of(block.k, block_of(step)), vs = pieces_of(block.v, block_of(step));
        for (size_t q = 0; q < pieces(); ++q)
          for (size_t k = 0; k < pieces(); ++k)
            if (const Sight sees = sight(q, step, k); sees != Sight::none)
              add_part(all, q, {ks[k], vs[k]}, sees, pair_name(step, q, k), whole_mask, outs[q], all_logs[q], sums[q]);
      }
      block = next;
    }
  }

  void add_part(const Queries& all, size_t q, const KeyBlock& keys, Sight sees, const std::string& name,
                const std::vector<View>& whole_mask, const View& out, const View& logs, Sum& sum) {
    const bool is_last = --sum.left == 0;
    Attrs attrs = attrs_of(sees);
    if (!sum.parts.empty()) attrs.erase(kSinks);  // the first part has them
    // If only positions decide, each row sees a key of each of its pairs, except those at the edge of a window.
    const bool may_see_none = has_mask_ || (sees == Sight::some && attrs_.integer("window", 0) > 0);
    const bool is_only = is_last && sum.parts.empty();
    if (may_see_none && !is_only) attrs.set(kPartOfKeys, true);
    std::vector<View> made = {out, logs};
    if (!is_only) made = {scratch_like(out), scratch_like(logs)};
    call(name, attrs, all, q, keys, whole_mask, made);
    if (sum.parts.empty()) {
      sum.parts = std::move(made);
      return;
    }
    Attrs of_merge;
    if (is_last) of_merge.set("last", true);
    std::vector<View> merged = {out, logs};
    if (!is_last) merged = {scratch_like(out), scratch_like(logs)};
    l_.emit_kernel(node_.name + name + ".merge", attention_merge_kernel, std::move(of_merge),
                   {sum.parts[0], sum.parts[1], made[0], made[1]}, merged);
    sum.parts = std::move(merged);
  }

  // ---- a balanced ring with causal: rank i of n has the pieces i and 2n - 1 - i, and sees of the block of rank j
  //
  //   queries        keys j                   keys 2n - 1 - j
  //   i              if j < i (or the diagonal of its own)  never but the diagonal
  //   2n - 1 - i     always                   if j > i (or the diagonal of its own)

  bool is_balanced() const { return is_ordered() && attrs_.flag("causal") && has_balanced_ring(node_); }

  /// Marks what `emit` emits as idle if this rank does not see the pair.
  template <class Emit>
  void unless_hidden(size_t queries, int64_t step, size_t keys, const Emit& emit) {
    mark_idle(sight(queries, step, keys) == Sight::none, emit);
  }
  template <class Emit>
  void mark_idle(bool is_idle, const Emit& emit) {
    const size_t first = l_.c.code.size();
    emit();
    for (size_t i = first; i < l_.c.code.size(); ++i) l_.c.code[i].code.idle = is_idle;
  }
  Attrs attrs_of_pair(size_t queries, int64_t step, size_t keys) const {
    return attrs_of(step == 0 && queries == keys ? Sight::some : Sight::all);
  }

  /// Parts are added to outs and logs in place.
  void balanced_forward(const Queries& all, const KeyBlock& mine, const std::vector<View>& whole_mask,
                        const std::vector<View>& outs, const std::vector<View>& all_logs) {
    KeyBlock block = mine;
    for (int64_t step = 0; step < ways_; ++step) {
      const KeyBlock next = pass_on(mine, block, step);
      const std::vector<View> ks = pieces_of(block.k, block_of(step)), vs = pieces_of(block.v, block_of(step));
      const auto add = [&](size_t q, size_t k, bool is_first) {
        unless_hidden(q, step, k, [&] {
          Attrs attrs = attrs_of_pair(q, step, k);
          if (has_mask_) attrs.set(kPartOfKeys, true);
          const std::vector<View> sum = {outs[q], all_logs[q]};
          const std::vector<View> part = is_first ? sum : std::vector{scratch_like(outs[q]), scratch_like(all_logs[q])};
          const std::string name = pair_name(step, q, k);
          call(name, attrs, all, q, {ks[k], vs[k]}, whole_mask, part);
          if (!is_first)
            l_.emit_kernel(node_.name + name + ".merge", attention_merge_kernel, {}, {sum[0], sum[1], part[0], part[1]},
                           sum);
        });
      };
      add(0, 0, step == 0);
      add(1, 0, step == 0);
      add(1, 1, false);
      block = next;
    }
  }

  /// The same as block_grads, of a block of another rank.
  void balanced_grads(const Queries& all, const KeyBlock& block, int64_t step, const std::vector<View>& whole_mask,
                      const std::vector<View>& dqs, const KeyBlock& grads) {
    const int64_t of = block_of(step);
    const std::vector<View> ks = pieces_of(block.k, of), vs = pieces_of(block.v, of);
    const std::vector<View> dks = blank_pieces(grads.k, of), dvs = blank_pieces(grads.v, of);
    const auto add_pair = [&](size_t q, size_t k, bool is_first_of_keys) {
      unless_hidden(q, step, k, [&] {
        const View dq = scratch_like(dqs[q]), dk = is_first_of_keys ? dks[k] : scratch_like(dks[k]),
                   dv = is_first_of_keys ? dvs[k] : scratch_like(dvs[k]);
        call(pair_name(step, q, k), attrs_of_pair(q, step, k), all, q, {ks[k], vs[k]}, whole_mask, {dq, dk, dv});
        add(dq, dqs[q]);
        if (!is_first_of_keys) add(dk, dks[k]), add(dv, dvs[k]);
      });
    };
    add_pair(1, 0, true);
    add_pair(0, 0, false);
    mark_idle(sight(1, step, 1) != Sight::none, [&] {
      for (const View* view : {&dks[1], &dvs[1]})
        l_.emit_kernel("zero " + view->operand.tensor, zero_kernel, {}, {}, {*view});
    });
    add_pair(1, 1, true);
    join(dks, grads.k);
    join(dvs, grads.v);
  }

  void ring_grad(const Queries& all, const KeyBlock& mine, const std::vector<View>& whole_mask) {
    const View dq = new_output(0);
    const std::vector<View> dqs = blank_pieces(dq, index_);
    std::vector<bool> has_dq(pieces());
    const KeyBlock totals{new_output(1), new_output(2)};
    KeyBlock block = mine;
    for (int64_t step = 0; step < ways_; ++step) {
      if (step + 1 < ways_) send(mine, block, step);
      KeyBlock sums;
      if (step > 0) {
        sums = new_block(totals, step);
        recv(totals, sums, step);
      }
      const KeyBlock next = receive_next(mine, step);
      const bool sees = sees_block(step);
      KeyBlock grads = sums;
      if (sees) {
        grads = new_block(totals, step);
        if (is_balanced() && step > 0)
          balanced_grads(all, block, step, whole_mask, dqs, grads);
        else
          block_grads(all, block, step, whole_mask, dqs, has_dq, grads);
      }
      if (sees && step > 0) {
        add(grads.k, sums.k), add(grads.v, sums.v);
        grads = sums;
      }
      send(totals, grads, step);
      block = next;
    }
    recv(totals, totals, ways_);
    join(dqs, dq);
    keep(0, dq);
    keep(1, totals.k);
    keep(2, totals.v);
  }

  /// Writes this rank's part of a block's gradients, and adds its part of dq.
  void block_grads(const Queries& all, const KeyBlock& block, int64_t step, const std::vector<View>& whole_mask,
                   const std::vector<View>& dqs, std::vector<bool>& has_dq, const KeyBlock& grads) {
    const int64_t of = block_of(step);
    const std::vector<View> ks = pieces_of(block.k, of), vs = pieces_of(block.v, of);
    const std::vector<View> dks = blank_pieces(grads.k, of), dvs = blank_pieces(grads.v, of);
    for (size_t k = 0; k < pieces(); ++k) {
      bool has_keys = false;
      for (size_t q = 0; q < pieces(); ++q) {
        const Sight sees = sight(q, step, k);
        if (sees == Sight::none) continue;
        const View dq = has_dq[q] ? scratch_like(dqs[q]) : dqs[q], dk = has_keys ? scratch_like(dks[k]) : dks[k],
                   dv = has_keys ? scratch_like(dvs[k]) : dvs[k];
        call(pair_name(step, q, k), attrs_of(sees), all, q, {ks[k], vs[k]}, whole_mask, {dq, dk, dv});
        if (has_dq[q]) add(dq, dqs[q]);
        if (has_keys) add(dk, dks[k]), add(dv, dvs[k]);
        has_dq[q] = has_keys = true;
      }
      if (has_keys) continue;
      for (const View* view : {&dks[k], &dvs[k]})
        l_.emit_kernel("zero " + view->operand.tensor, zero_kernel, {}, {}, {*view});
    }
    join(dks, grads.k);
    join(dvs, grads.v);
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

}  // namespace

void exchange_keys(Lowering& l, NodeId node) { KeyExchange(l, node).lower(); }

}  // namespace trainctl
