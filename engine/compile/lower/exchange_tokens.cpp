// Experts whose ranks share the tokens too (plan/token_exchange.h): each token is sent to the ranks of its experts, and
// their results are sent back. Of p ranks, each with t tokens:
//
//   ids [t, k]      -> place_tokens -> rows, places; counts [p] -> all_gather -> [p, p]
//   ids, weights, x -> pack_tokens  -> [p, rows, ..] -> all_to_all -> [p, rows, ..]
//   experts of these p * rows tokens, of which only those with an expert here are computed
//   y [p, rows, d]  -> all_to_all -> [p, rows, d] -> sum_tokens -> y [t, d]
//
// The gradient sends dy in the same way, and dx and the gradient of the weights come back. A token's results are added
// in the order of ranks, so each plan has the sums of one that gathers tokens.
#include <string>
#include <utility>

#include "engine/compile/lower/lowering.h"
#include "engine/graph/counted_rows.h"
#include "engine/ops/moe/token_exchange.h"
#include "engine/ops/op_def.h"
#include "engine/plan/token_exchange.h"

namespace trainctl {
namespace {

class TokenExchange {
 public:
  TokenExchange(Lowering& l, NodeId id)
      : l_(l), id_(id), node_(l.c.graph.nodes[static_cast<size_t>(id)]), at_(*expert_operands(node_)) {
    const Axes axes = token_exchange_axes(l.c.graph, l.c.plan, node_);
    ranks_ = l.c.plan.mesh.ways(axes);
    std::vector<int> group = l.c.plan.mesh.group(l.c.rank_in_stage, axes);
    for (int& rank : group) rank = l.c.global_rank(l.c.stage, rank);
    group_ = l.c.group_of(group);
    axes_ = axes;
    name_ = l.c.graph.layers[static_cast<size_t>(node_.layer)].name;
  }

  /// Emits the exchange that sends the tokens to the ranks of their experts, or in the backward pass dy.
  void begin() {
    SentTokens& sent = l_.sent_tokens[key()];
    if (at_.is_grad()) {
      sent.dy = send(own(0), "dy", sent, true);
      return;
    }
    sent = {};
    const View ids = own(at_.ids());
    const int64_t k = ids.operand.shape.back(), tokens = num_elements(ids.operand.shape) / k;
    const TokenBlocks blocks = token_blocks({.tokens = tokens,
                                             .top_k = k,
                                             .ranks = ranks_,
                                             .capacity = node_.attrs.number("capacity"),
                                             .has_room_for_all = has_room_for_all(l_.c.cost.machine())});
    const Tensor& x = l_.c.graph.tensors[static_cast<size_t>(node_.inputs[at_.x()])];
    sent.rows_of_block = blocks.rows;
    sent.counted = moves_rows(blocks, x.shape.back() * byte_size(x.dtype), l_.c.cost, l_.c.plan.mesh, axes_);
    sent.expected_share = sent.counted ? blocks.expected_share : 1;
    sent.pairs = tokens * k;
    place(ids, tokens, sent);
    sent.ids = send(ids, "ids", sent, false);
    sent.weights = send(own(at_.weights()), "weights", sent, true);
    sent.x = send(own(at_.x()), "x", sent, true);
  }

  /// Emits the kernels of the experts and the exchange that sends the results back. Returns for each output whether it
  /// was already added to its bucket.
  std::vector<bool> finish() {
    at_.is_grad() ? backward() : forward();
    return direct_;
  }

 private:
  View own(size_t input) { return bring(l_, node_.inputs[input], l_.node_inputs[static_cast<size_t>(id_)][input]); }
  LayoutId made(size_t output) const { return l_.node_outputs[static_cast<size_t>(id_)][output]; }
  void keep(size_t output, View view) { l_.have(node_.outputs[output]).push_back({made(output), std::move(view)}); }

  /// Identifies the layer in this micro-batch.
  std::pair<size_t, TensorId> key() const {
    return {l_.slot(), at_.is_grad() ? node_.inputs[at_.kept()] : node_.outputs[1]};
  }

  void forward() {
    const SentTokens sent = l_.sent_tokens.at(key());
    View y = blocks_like(own(at_.x()), "y", sent);
    View kept = l_.new_tensor(node_.outputs[1], made(1));
    l_.emit_kernel(node_.name, kernel(), attrs(sent),
                   with_biases({sent.x, sent.weights, sent.ids, own(at_.up()), own(at_.down())}), {y, kept});
    keep(0, returned(y, l_.new_tensor(node_.outputs[0], made(0)), sent));
    keep(1, std::move(kept));
    direct_.assign(2, false);
  }

  void backward() {
    const View kept = own(at_.kept());
    const SentTokens sent = l_.sent_tokens.at(key());
    View dx = blocks_like(sent.x, "dx", sent), dweights = blocks_like(sent.weights, "dweights", sent);
    std::vector<View> outputs = {dx, dweights};
    direct_.assign(2, false);
    for (size_t o = 2; o < node_.outputs.size(); ++o) {
      const auto gradient = gradient_target(l_, id_, static_cast<int>(o));
      direct_.push_back(gradient.has_value());
      outputs.push_back(gradient ? *gradient : l_.new_tensor(node_.outputs[o], made(o)));
    }
    l_.emit_kernel(node_.name, kernel(), attrs(sent),
                   with_biases({sent.dy, sent.x, sent.weights, sent.ids, own(at_.up()), own(at_.down()), kept}),
                   outputs);
    keep(0, returned(dx, l_.new_tensor(node_.outputs[0], made(0)), sent));
    keep(1, returned(dweights, l_.new_tensor(node_.outputs[1], made(1)), sent));
    for (size_t o = 2; o < outputs.size(); ++o)
      if (!direct_[o]) keep(o, std::move(outputs[o]));
  }

  std::vector<View> with_biases(std::vector<View> inputs) {
    for (size_t i = at_.biases(); i < node_.inputs.size(); ++i) inputs.push_back(own(i));
    return inputs;
  }

  const KernelDef& kernel() const { return get_op(node_.op).kernel; }
  Attrs attrs(const SentTokens& sent) const {
    Attrs attrs = node_.attrs;
    attrs.set(kExpectedPairs, sent.pairs);
    return attrs;
  }

  /// Emits the kernel that assigns each pair of token and expert a row in the block for the expert's rank, and that
  /// counts the used rows of each block.
  void place(const View& ids, int64_t tokens, SentTokens& sent) {
    sent.rows = l_.new_value(BufferKind::activation, {ranks_, sent.rows_of_block}, DType::i32, name_ + ".rows");
    sent.places = l_.new_value(BufferKind::activation, {ranks_, tokens}, DType::i32, name_ + ".places");
    const View counts = l_.new_value(BufferKind::scratch, {ranks_}, DType::i32, name_ + ".counts");
    const int64_t experts_per_rank = node_.attrs.integer("experts") / ranks_;
    l_.emit_kernel(name_ + ".place_tokens", place_tokens_kernel,
                   {{"experts_per_rank", experts_per_rank}, {"ranks", ranks_}, {"rows", sent.rows_of_block}}, {ids},
                   {sent.rows, sent.places, counts}, Purpose::redistribute);
    if (!sent.counted) return;
    sent.counts = l_.new_value(BufferKind::activation, {ranks_, ranks_}, DType::i32, name_ + ".counts of all ranks");
    Instruction i = exchange_of("all_gather " + name_ + ".counts", Collective::all_gather);
    i.attrs.set(kHostReads, true);
    l_.emit(std::move(i), {counts}, {sent.counts});
  }

  Instruction exchange_of(std::string name, Collective kind) const {
    Instruction i;
    i.opcode = Opcode::collective;
    i.name = std::move(name);
    i.collective = kind;
    i.group = group_;
    i.purpose = Purpose::redistribute;
    return i;
  }

  View blocks_like(const View& rows, const char* of, const SentTokens& sent) {
    return l_.new_value(BufferKind::activation, {ranks_, sent.rows_of_block, rows.operand.shape.back()},
                        rows.operand.dtype, name_ + "." + of + " by rank");
  }

  /// Packs rows of this rank's tokens into one block per rank, and exchanges the blocks. With `only_used`, only the
  /// used rows of a block are sent. Expert ids are sent with the padding, whose values mark rows as unused.
  View send(const View& tokens, const char* of, const SentTokens& sent, bool only_used) {
    const View packed = blocks_like(tokens, of, sent);
    l_.emit_kernel("pack " + name_ + "." + of, pack_tokens_kernel, {}, {tokens, sent.rows}, {packed},
                   Purpose::redistribute);
    View received = blocks_like(tokens, of, sent);
    exchange(of, packed, received, sent, only_used, false);
    return received;
  }

  View returned(const View& blocks, const View& tokens, const SentTokens& sent) {
    const View received = blocks_like(blocks, "returned", sent);
    exchange(tokens.operand.tensor, blocks, received, sent, true, true);
    l_.emit_kernel("sum " + tokens.operand.tensor, sum_tokens_kernel, {}, {received, sent.places}, {tokens},
                   Purpose::redistribute);
    return tokens;
  }

  void exchange(const std::string& of, const View& from, const View& to, const SentTokens& sent, bool only_used,
                bool is_reversed) {
    Instruction i = exchange_of("all_to_all " + (is_reversed ? of : name_ + "." + of), Collective::all_to_all);
    std::vector<View> inputs = {from};
    if (only_used) i.attrs.set(kExpectedShare, sent.expected_share);
    if (only_used && sent.counted) {
      i.attrs.set(kRowElements, from.operand.shape.back());
      if (is_reversed) i.attrs.set(kReversed, true);
      inputs.push_back(sent.counts);
    }
    l_.emit(std::move(i), std::move(inputs), {to});
  }

  Lowering& l_;
  const NodeId id_;
  const Node& node_;
  const ExpertOperands at_;
  int64_t ranks_ = 1;
  int group_ = -1;
  Axes axes_;
  std::string name_;  ///< the layer's name
  std::vector<bool> direct_;
};

}  // namespace

void begin_token_exchange(Lowering& l, NodeId node) { TokenExchange(l, node).begin(); }

std::vector<bool> finish_token_exchange(Lowering& l, NodeId node) { return TokenExchange(l, node).finish(); }

}  // namespace trainctl
