// Ring attention (exchange_keys.cpp): each rank has a block of rows and passes its block of keys and values from rank
// to rank, so that its queries see all keys. A node of attention enters; the sends, receives and kernels of this rank
// leave, and the node's outputs are kept in the layouts of the plan. With 3 ranks, the keys that a rank has in each
// step:
//
//            step 0   step 1   step 2
//   rank 0   own      2        1          forward    ring_forward: out and logs of the queries so far are merged with
//   rank 1   own      0        2                     those over the block of the step
//   rank 2   own      1        0          backward   ring_grad: dq is added up on the rank; the gradients of a block
//                                                    follow it, and return to its rank
//
// A message is named by the number of ranks that its block has passed.
//
// With a causal mask, a rank needs only some pairs of query and key blocks. In a balanced ring all ranks nevertheless
// have the same list of instructions: the list contains the attention calls of every rank, and a rank marks the calls
// that it does not need as idle (Instruction::idle).
#include "engine/compile/lower/key_exchange.h"

namespace trainctl {
namespace {

class KeyRing : public KeyExchange {
 public:
  KeyRing(Lowering& l, NodeId id) : KeyExchange(l, id), sights_(node_, rows_, ways_) {}

  void ring() {
    const std::vector<View> whole_mask = mask();
    const Queries all = queries();
    const KeyBlock mine{own(k_at()), own(v_at())};
    is_grad() ? ring_grad(all, mine, whole_mask) : ring_forward(all, mine, whole_mask);
  }

 private:
  int neighbour(int64_t distance) const {
    const std::vector<int> ranks = l_.c.plan.mesh.group(l_.c.rank_in_stage, axes_);
    return l_.c.global_rank(l_.c.stage, ranks[static_cast<size_t>((index_ + distance + ways_) % ways_)]);
  }

  int64_t block_of(int64_t step) const { return (index_ - step + ways_) % ways_; }

  Sight sight(size_t queries, int64_t step, size_t keys) const { return sights_.of(index_, queries, step, keys); }
  size_t pieces() const { return static_cast<size_t>(num_pieces()); }
  bool sees_block(int64_t step) const {
    for (size_t q = 0; q < pieces(); ++q)
      for (size_t k = 0; k < pieces(); ++k)
        if (sight(q, step, k) != Sight::none) return true;
    return false;
  }
  /// The attributes of the attention call for a pair of query and key blocks of which `sight` tells what is visible.
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

  /// Emits a send or a receive of one tensor of a block. Both ends name the message by the tensor and by the number of
  /// ranks that the block has passed when it arrives (`passed`).
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
  /// Sends `block` to the next rank of the ring in step `step`. The names of messages come from `like`, this rank's own
  /// keys and values.
  void send(const KeyBlock& like, const KeyBlock& block, int64_t step) {
    message(Opcode::send, 1, block.k, like.k.operand.tensor, step + 1);
    message(Opcode::send, 1, block.v, like.v.operand.tensor, step + 1);
  }
  void recv(const KeyBlock& like, const KeyBlock& block, int64_t step) {
    message(Opcode::recv, -1, block.k, like.k.operand.tensor, step);
    message(Opcode::recv, -1, block.v, like.v.operand.tensor, step);
  }

  /// Allocates scratch memory for the block of keys and values that this rank has in step `step`.
  KeyBlock new_block(const KeyBlock& like, int64_t step) {
    KeyBlock block{scratch_like(like.k), scratch_like(like.v)};
    for (View* view : {&block.k, &block.v}) {
      view->operand.global_offset[kRowDim] = block_of(step) * (rows_ / ways_);
      view->operand.tensor = block_name(view->operand.tensor, step);
    }
    return block;
  }

  /// Receives the block of the step that follows `step`; returns an empty block in the last step. The receive precedes
  /// the kernels of `step` in program order, so that the block does not share memory with what they write.
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

  /// The intermediate attention result of one piece of the queries: `out` (the weighted values) and `logs` (the
  /// logarithms of the softmax sums) over the blocks of keys seen so far.
  struct Sum {
    std::vector<View> parts;  ///< {out, logs}; empty before the first block of keys
    int64_t left = 0;         ///< number of blocks of keys that are still to come
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

  /// Emits the forward pass of a ring that is not balanced. A rank emits only the calls for pairs of pieces that it
  /// sees.
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

  /// Emits attention of the queries `q` over one block of keys and merges the result with those of earlier blocks. The
  /// result of the last block is written to `out` and `logs`.
  void add_part(const Queries& all, size_t q, const KeyBlock& keys, Sight sees, const std::string& name,
                const std::vector<View>& whole_mask, const View& out, const View& logs, Sum& sum) {
    const bool is_last = --sum.left == 0;
    Attrs attrs = attrs_of(sees);
    if (!sum.parts.empty()) attrs.erase(kSinks);  // the softmax sum of the first block contains the sinks already
    // Without a mask or bias only positions decide what a query sees. Then each query sees at least one key of each
    // visible block, unless the edge of a window crosses the block.
    const bool may_see_none = has_mask_ || has_bias() || (sees == Sight::some && attrs_.integer("window", 0) > 0);
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

  // ---- a balanced ring with causal: in a group, rank i of n has the pieces i and 2n - 1 - i, and sees of rank j's
  //
  //   queries        keys j                              keys 2n - 1 - j
  //   i              if j < i, and the diagonal of j = i  only the diagonal
  //   2n - 1 - i     always                               if j > i, and the diagonal of j = i
  //
  // The rank sees all keys of the groups before its own group, and no keys of the groups after it.

  bool is_balanced() const { return is_ordered() && attrs_.flag("causal") && has_balanced_ring(node_); }

  /// True if some rank sees the pair of pieces `queries` and `keys` in a step; false if no rank does.
  static bool may_see(size_t queries, size_t keys) {
    return queries / 2 != keys / 2 ? queries > keys : queries >= keys;
  }
  /// True if each rank sees the pair in each step but its own block's.
  static bool always_sees(size_t queries, size_t keys) {
    return queries / 2 != keys / 2 ? queries > keys : queries > keys && queries % 2 == 1;
  }

  /// Calls `emit`, and marks the instructions that it emits as idle if `is_idle`.
  template <class Emit>
  void mark_idle(bool is_idle, const Emit& emit) {
    const size_t first = l_.c.code.size();
    emit();
    for (size_t i = first; i < l_.c.code.size(); ++i) l_.c.code[i].code.idle = is_idle;
  }
  /// Calls `emit`, and marks its instructions as idle if this rank does not see the pair of pieces in this step.
  template <class Emit>
  void unless_hidden(size_t queries, int64_t step, size_t keys, const Emit& emit) {
    mark_idle(sight(queries, step, keys) == Sight::none, emit);
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
      for (size_t q = 0; q < pieces(); ++q)
        for (size_t k = 0; k < pieces(); ++k)
          if (may_see(q, k))
            unless_hidden(q, step, k, [&] {
              add_in_place(all, q, {ks[k], vs[k]}, step, k, whole_mask, {outs[q], all_logs[q]});
            });
      block = next;
    }
  }

  /// Emits attention of query piece `q` over key piece `k` and merges the result into `sum`, which holds out and logs
  /// of the query piece. The first pair of the query piece writes `sum`; later pairs are merged in place.
  void add_in_place(const Queries& all, size_t q, const KeyBlock& keys, int64_t step, size_t k,
                    const std::vector<View>& whole_mask, const std::vector<View>& sum) {
    const bool is_first = step == 0 && k == 0;
    Attrs attrs = attrs_of_pair(q, step, k);
    if (has_mask_) attrs.set(kPartOfKeys, true);
    if (!is_first) attrs.erase(kSinks);  // the softmax sum of the first pair contains the sinks already
    const std::vector<View> part = is_first ? sum : std::vector{scratch_like(sum[0]), scratch_like(sum[1])};
    const std::string name = pair_name(step, q, k);
    call(name, attrs, all, q, keys, whole_mask, part);
    if (is_first) return;
    l_.emit_kernel(node_.name + name + ".merge", attention_merge_kernel, {}, {sum[0], sum[1], part[0], part[1]}, sum);
  }

  /// The same as block_grads, for a block of another rank.
  void balanced_grads(const Queries& all, const KeyBlock& block, int64_t step, const std::vector<View>& whole_mask,
                      const std::vector<View>& dqs, const KeyBlock& grads) {
    const int64_t of = block_of(step);
    const std::vector<View> ks = pieces_of(block.k, of), vs = pieces_of(block.v, of);
    const std::vector<View> dks = blank_pieces(grads.k, of), dvs = blank_pieces(grads.v, of);
    for (size_t k = 0; k < pieces(); ++k) {
      // Query pieces that may see the key piece. Pieces that see it on every rank come first: piece 0 of this list
      // writes the gradients dk and dv, and later pieces are added.
      std::vector<size_t> seen_by;
      for (size_t q = 0; q < pieces(); ++q)
        if (always_sees(q, k)) seen_by.push_back(q);
      const bool has_writer = !seen_by.empty();
      for (size_t q = 0; q < pieces(); ++q)
        if (may_see(q, k) && !always_sees(q, k)) seen_by.push_back(q);
      if (!has_writer) zero_unless_seen(seen_by[0], step, k, {dks[k], dvs[k]});
      for (size_t at = 0; at < seen_by.size(); ++at) {
        const size_t q = seen_by[at];
        unless_hidden(q, step, k, [&] {
          const View dq = scratch_like(dqs[q]), dk = at == 0 ? dks[k] : scratch_like(dks[k]),
                     dv = at == 0 ? dvs[k] : scratch_like(dvs[k]);
          call(pair_name(step, q, k), attrs_of_pair(q, step, k), all, q, {ks[k], vs[k]}, whole_mask, {dq, dk, dv});
          add(dq, dqs[q]);
          if (at > 0) add(dk, dks[k]), add(dv, dvs[k]);
        });
      }
    }
    join(dks, grads.k);
    join(dvs, grads.v);
  }

  /// Zeroes the gradients of key piece `k`, unless this rank's query piece `q` sees the key piece and so writes its
  /// gradients. Needed if no query piece sees the key piece on every rank.
  void zero_unless_seen(size_t q, int64_t step, size_t k, const KeyBlock& grads) {
    mark_idle(sight(q, step, k) != Sight::none, [&] {
      for (const View* view : {&grads.k, &grads.v})
        l_.emit_kernel("zero " + view->operand.tensor, zero_kernel, {}, {}, {*view});
    });
  }

  /// Emits the gradients of one rank's queries, and of the keys and values that pass by. Each block travels once around
  /// the ring, and the sums of its gradients follow it until they reach their own rank.
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

  /// Emits the gradients from this rank's queries over one block of keys and values: the gradients of the block are
  /// written to `grads`, and the gradients of the queries are added to `dqs`.
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

  const RingSights sights_;
};

}  // namespace

void pass_keys_around(Lowering& l, NodeId node) { KeyRing(l, node).ring(); }

}  // namespace trainctl
