// Attention whose ranks share the rows of a sequence (ops/attention/key_exchange.h): each rank has the queries, keys
// and values of its rows, and its queries need all keys.
//
//   gather   all_gather k, v -> attention; the gradient gathers them again -> attention_grad -> reduce_scatter dk, dv
//
//   ring     rank i of n has block j = i - s of the keys in step s:
//
//              step 0          step 1              step n-1
//     k, v     i -> i+1        i-1 -> i+1    …     i+1
//     kernel   q, block i      q, block i-1        q, block i+1       parts are merged, those of dq are added
//     dk, dv   i -> i+1        i-1 -> i+1          i+1 -> i+1         each rank adds its part before it passes them on
//
//            A block that no query of the rank can see (causal, window) is passed on without a kernel.
#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/compile/lower/lowering.h"
#include "engine/ops/attention/key_exchange.h"
#include "engine/ops/op_def.h"
#include "engine/ops/program_kernels.h"
#include "engine/ops/row_order.h"
#include "engine/plan/row_exchange.h"

namespace trainctl {
namespace {

constexpr size_t kRowDim = 1;

/// Positions [first, last] of rows.
struct Positions {
  int64_t first = 0, last = 0;
};

/// What rank `index` of a sequence of `rows` rows has.
std::vector<Positions> positions_of(const RowOrder& order, int64_t index, int64_t rows) {
  const int64_t first = index * rows;
  if (order.piece == 0) return {{first, first + rows - 1}};
  std::vector<Positions> pieces;
  for (int64_t at = first; at < first + rows; at += order.piece) {
    const int64_t position = order.position(at);
    pieces.push_back({position, position + order.piece - 1});
  }
  return pieces;
}

class KeyExchange {
 public:
  KeyExchange(Lowering& l, NodeId id)
      : l_(l), id_(id), node_(l.c.graph.nodes[id]), kernel_(get_op(node_.op).kernel), first_(is_grad() ? 1 : 0) {
    axes_ = exchange_axes(l.c.graph, l.c.plan, node_);
    ways_ = l.c.plan.mesh.ways(axes_);
    index_ = l.c.plan.mesh.index(l.c.rank_in_stage, axes_);
    const size_t others = is_grad() ? 3 : 0;  // dy, out and logs
    has_mask_ = node_.inputs.size() - others == 4;
  }

  void lower() { l_.c.plan.context_method == ContextMethod::ring ? ring() : gather(); }

 private:
  bool is_grad() const { return node_.phase == Phase::backward; }
  size_t q_at() const { return first_; }
  size_t k_at() const { return first_ + 1; }
  size_t v_at() const { return first_ + 2; }

  View own(size_t input) { return bring(l_, node_.inputs[input], l_.node_inputs[id_][input]); }

  LayoutId with_whole_rows(LayoutId layout) {
    Layout whole = l_.layout(layout);
    whole.dims[kRowDim] = without(whole.dims[kRowDim], axes_);
    return l_.id(whole);
  }

  /// All rows of an input. They are gathered again where they are needed again, which takes less memory.
  View gathered(size_t input) {
    const TensorId tensor = node_.inputs[input];
    const LayoutId whole = with_whole_rows(l_.node_inputs[id_][input]);
    auto& values = l_.have(tensor);
    const bool is_there =
        std::any_of(values.begin(), values.end(), [&](const Located& v) { return v.layout == whole; });
    View view = bring(l_, tensor, whole);
    if (!is_there) std::erase_if(l_.have(tensor), [&](const Located& v) { return v.layout == whole; });
    return view;
  }

  /// The mask has a number per row: it is small, and kept.
  std::vector<View> mask() {
    if (!has_mask_) return {};
    const size_t at = first_ + 3;
    return {bring(l_, node_.inputs[at], with_whole_rows(l_.node_inputs[id_][at]))};
  }

  /// The operands of the kernel for these keys and values.
  std::vector<View> operands(const View& k, const View& v) {
    std::vector<View> all;
    if (is_grad()) all.push_back(own(0));
    all.insert(all.end(), {own(q_at()), k, v});
    for (View& view : mask()) all.push_back(std::move(view));
    if (is_grad()) all.insert(all.end(), {own(node_.inputs.size() - 2), own(node_.inputs.size() - 1)});
    return all;
  }

  View new_output(size_t output) { return l_.new_tensor(node_.outputs[output], l_.node_outputs[id_][output]); }
  void keep(size_t output, View view) {
    l_.have(node_.outputs[output]).push_back({l_.node_outputs[id_][output], std::move(view)});
  }

  void gather() {
    const std::vector<View> inputs = operands(gathered(k_at()), gathered(v_at()));
    std::vector<View> outputs = {new_output(0)};
    if (!is_grad()) {
      outputs.push_back(new_output(1));
    } else {
      for (const size_t o : {1, 2}) outputs.push_back(l_.new_tensor(node_.outputs[o], of_all_rows(o)));
    }
    l_.emit_kernel(node_.name, kernel_, node_.attrs, inputs, outputs);
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (is_grad() && o > 0)
        for (const RedistributionStep& step : l_.way(node_.outputs[o], of_all_rows(o), l_.node_outputs[id_][o]).steps)
          outputs[o] = redistribute(l_, node_.outputs[o], outputs[o], step);
      keep(o, std::move(outputs[o]));
    }
  }

  /// The layout of this rank's terms of the gradients of all keys.
  LayoutId of_all_rows(size_t output) {
    Layout layout = l_.layout(with_whole_rows(l_.node_outputs[id_][output]));
    layout.partial.insert(layout.partial.end(), axes_.begin(), axes_.end());
    std::sort(layout.partial.begin(), layout.partial.end());
    return l_.id(layout);
  }

  // ---- ring

  int neighbour(int64_t distance) const {
    const std::vector<int> ranks = l_.c.plan.mesh.group(l_.c.rank_in_stage, axes_);
    return l_.c.global_rank(l_.c.stage, ranks[static_cast<size_t>((index_ + distance + ways_) % ways_)]);
  }

  int64_t block_of(int64_t step) const { return (index_ - step + ways_) % ways_; }

  /// Whether some query of this rank sees a key of the step's block, as far as positions tell.
  bool sees_block(int64_t step) const {
    const Shape& q = l_.c.graph.tensors[node_.inputs[q_at()]].shape;
    const RowOrder order = RowOrder::of(node_.attrs, q[kRowDim]);
    const int64_t rows = q[kRowDim] / ways_, window = node_.attrs.integer("window", 0);
    if (!node_.attrs.flag("causal")) return true;
    for (const Positions& queries : positions_of(order, index_, rows))
      for (const Positions& keys : positions_of(order, block_of(step), rows))
        if (keys.first <= queries.last && (window == 0 || keys.last + window > queries.first)) return true;
    return false;
  }

  void message(Opcode opcode, int peer, const View& view, const std::string& tensor) {
    Instruction i;
    i.opcode = opcode;
    i.name = std::string(to_string(opcode)) + " " + tensor;
    i.peer = peer;
    i.purpose = Purpose::redistribute;
    const bool sends = opcode == Opcode::send;
    l_.emit(std::move(i), sends ? std::vector{view} : std::vector<View>{},
            sends ? std::vector<View>{} : std::vector{view});
  }

  /// Keys, values or their gradients of a block.
  struct Block {
    View k, v;
  };

  Block new_block(const Block& like, int64_t of) {
    Block block = like;
    for (View* view : {&block.k, &block.v}) {
      view->buffer = l_.c.new_buffer(BufferKind::scratch, view->operand.bytes());
      view->operand.offset = 0;
      view->operand.accumulate = false;
      view->operand.global_offset[kRowDim] = of * view->operand.shape[kRowDim];
    }
    return block;
  }

  void send(const Block& block) {
    for (const View* view : {&block.k, &block.v}) message(Opcode::send, neighbour(1), *view, view->operand.tensor);
  }
  void recv(const Block& block) {
    for (const View* view : {&block.k, &block.v}) message(Opcode::recv, neighbour(-1), *view, view->operand.tensor);
  }

  View scratch_like(const View& view) {
    View copy = view;
    copy.buffer = l_.c.new_buffer(BufferKind::scratch, view.operand.bytes());
    copy.operand.offset = 0;
    return copy;
  }

  std::string step_name(int64_t step) const { return node_.name + ".block" + std::to_string(step); }

  void ring() {
    const Block mine{own(k_at()), own(v_at())};
    is_grad() ? ring_grad(mine) : ring_forward(mine);
  }

  void ring_forward(const Block& mine) {
    const View out = new_output(0), logs = new_output(1);
    int64_t last = 0;
    for (int64_t step = 0; step < ways_; ++step)
      if (sees_block(step)) last = step;
    std::vector<View> sums;  // out and logs of the blocks so far
    Attrs part = node_.attrs;
    if (last > 0) part.set(kPartOfKeys, true);
    Block block = mine;
    for (int64_t step = 0; step < ways_; ++step) {
      if (step + 1 < ways_) send(block);
      if (sees_block(step)) {
        const bool is_only = sums.empty() && step == last;
        std::vector<View> made = {out, logs};
        if (!is_only) made = {scratch_like(out), scratch_like(logs)};
        l_.emit_kernel(step_name(step), kernel_, part, operands(block.k, block.v), made);
        if (sums.empty()) {
          sums = made;
        } else {
          Attrs attrs;
          if (step == last) attrs.set("last", true);
          std::vector<View> merged = {out, logs};
          if (step != last) merged = {scratch_like(out), scratch_like(logs)};
          l_.emit_kernel(node_.name + ".merge" + std::to_string(step), attention_merge_kernel, std::move(attrs),
                         {sums[0], sums[1], made[0], made[1]}, merged);
          sums = std::move(merged);
        }
      }
      if (step + 1 == ways_) break;
      const Block next = new_block(mine, block_of(step + 1));
      recv(next);
      block = next;
    }
    keep(0, out);
    keep(1, logs);
  }

  void add(const View& from, View to) {
    to.operand.accumulate = true;
    l_.emit_kernel("accumulate " + to.operand.tensor, accumulate_kernel, {}, {from}, {to});
  }

  void ring_grad(const Block& mine) {
    const View dq = new_output(0);
    const Block totals{new_output(1), new_output(2)};
    Block block = mine;
    for (int64_t step = 0; step < ways_; ++step) {
      if (step + 1 < ways_) send(block);
      const bool sees = sees_block(step);
      Block grads;
      if (sees) {
        grads = new_block(totals, block_of(step));
        const View dq_part = step == 0 ? dq : scratch_like(dq);
        l_.emit_kernel(step_name(step), kernel_, node_.attrs, operands(block.k, block.v), {dq_part, grads.k, grads.v});
        if (step > 0) add(dq_part, dq);
      }
      if (step > 0) {
        const Block sums = new_block(totals, block_of(step));
        recv(sums);
        if (sees) add(grads.k, sums.k), add(grads.v, sums.v);
        grads = sums;
      }
      send(grads);
      if (step + 1 == ways_) break;
      const Block next = new_block(mine, block_of(step + 1));
      recv(next);
      block = next;
    }
    recv(totals);
    keep(0, dq);
    keep(1, totals.k);
    keep(2, totals.v);
  }

  Lowering& l_;
  const NodeId id_;
  const Node& node_;
  const KernelDef& kernel_;
  const size_t first_;  ///< the input that has q
  Axes axes_;
  int64_t ways_ = 1, index_ = 0;
  bool has_mask_ = false;
};

}  // namespace

void exchange_keys(Lowering& l, NodeId node) { KeyExchange(l, node).lower(); }

}  // namespace trainctl
