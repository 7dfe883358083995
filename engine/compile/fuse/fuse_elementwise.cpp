// Fuses chains of element-wise kernels into one, which reads each input once and writes only outputs that other
// instructions read: dropout(gelu(x + b)) is "x0 b1 + gelu dropout(0.1,42) =0". It replaces the last kernel of the
// chain. In the backward pass, kernels that read an input of the chain join it too: the gradients of both factors of a
// gated layer are one kernel. Values that their readers compute again (inlined_values.h) are never written.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "engine/base/error.h"
#include "engine/compile/fuse/inlined_values.h"
#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"
#include "engine/ops/elementwise/expression.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

/// Maximum number of other instructions between two of a chain, because the inputs of the first are kept until the
/// last. Element-wise ones, which chains of their own may take, do not count.
constexpr int kMostBetween = 6;

bool like(const Operand& a, const Operand& b) {
  return a.shape == b.shape && a.global_shape == b.global_shape && a.global_offset == b.global_offset;
}

/// True if `row` is broadcast along the leading dims of `whole`.
bool repeats(const Operand& row, const Operand& whole) {
  Shape shape = row.shape;
  while (!shape.empty() && shape[0] == 1) shape.erase(shape.begin());
  return shape.size() < whole.shape.size() && std::equal(shape.rbegin(), shape.rend(), whole.shape.rbegin());
}

std::string token_of(const VirtualInstruction& v) {
  const KernelDef* kernel = kernel_of(v.code);
  if (kernel == nullptr || v.code.idle || kernel->element == nullptr || v.outputs.size() != 1 ||
      v.code.outputs[0].accumulate)
    return "";
  const std::string token = kernel->element(v.code.attrs);
  const Operand& out = v.code.outputs[0];
  for (const Operand& in : v.code.inputs) {
    if (!like(in, out) && !repeats(in, out)) return "";
  }
  return token;
}

using Inlined = std::vector<std::optional<InlinedValue>>;  // by buffer

/// Instructions that may be fused, in list order.
class Chain {
 public:
  Chain(const Compiler& c, const std::vector<int>& reads, const std::vector<std::string>& tokens,
        const Inlined& inlined, size_t first)
      : c_(c), reads_(reads), tokens_(tokens), inlined_(inlined), members_{first} {
    if (has_inlined()) check(is_within_limits(), "a kernel can compute the inlined inputs of a single op");
  }

  size_t size() const { return members_.size(); }
  const std::vector<size_t>& members() const { return members_; }
  /// True if the first member reads an inlined value, which is never written to memory and is computed again by its
  /// readers.
  bool has_inlined() const {
    return std::ranges::any_of(at(0).inputs, [&](BufferId in) { return inlined_[in].has_value(); });
  }

  /// Adds the instruction at `at` if it reads an output of the chain, belongs to the same task, and the chain can still
  /// be written as one expression. Returns whether it was added; so do the next two functions.
  bool add(size_t at) { return fits(at) && reads_chain(c_.code[at]) && add_within_limits(at); }

  /// Adds the instruction at `at` if it belongs to the same task and reads an input of the chain.
  bool add_beside(size_t at) { return fits(at) && shares_input(c_.code[at]) && add_within_limits(at); }

  /// Adds an instruction after the last member's place, `place`, if it can move up to there and shares an input with
  /// the chain or reads an output of it.
  bool add_from_below(size_t at, size_t place, const std::vector<bool>& gone) {
    if (!fits(at) || (!reads_chain(c_.code[at]) && !shares_input(c_.code[at]))) return false;
    const std::vector<BufferId> read = sources_of(c_.code[at]);
    for (size_t i = place + 1; i < at; ++i) {
      if (gone[i] || std::ranges::count(members_, i) > 0) continue;
      const VirtualInstruction& between = c_.code[i];
      if (names(between.inputs, c_.code[at].outputs[0]) || names(between.outputs, c_.code[at].outputs[0])) return false;
      if (std::ranges::any_of(read, [&](BufferId in) { return names(between.outputs, in); })) return false;
    }
    return add_within_limits(at);
  }

  /// True if the chain cannot be moved past this instruction.
  bool is_stopped_by(const VirtualInstruction& other) const {
    const std::vector<BufferId> read = sources_of(other);
    for (size_t m : members_) {
      const VirtualInstruction& v = c_.code[m];
      if (names(read, v.outputs[0]) || names(other.outputs, v.outputs[0])) return true;
      for (BufferId in : sources_of(v))
        if (names(other.outputs, in)) return true;
    }
    return false;
  }

  /// The fused instruction of the chain.
  VirtualInstruction fused() const {
    const Expression expression = this->expression();
    VirtualInstruction one;
    for (const auto& [instruction, input] : expression.inputs) {
      one.inputs.push_back(c_.code[instruction].inputs[input]);
      one.code.inputs.push_back(c_.code[instruction].code.inputs[input]);
    }
    for (size_t member : expression.outputs) {
      one.outputs.push_back(at(member).outputs[0]);
      one.code.outputs.push_back(at(member).code.outputs[0]);
    }
    const Instruction& last = at(members_.size() - 1).code;
    one.code.name = last.name;
    one.code.op = elementwise_kernel.name;
    one.code.attrs = {{"expression", expression.text}};
    one.code.phase = last.phase;
    one.code.micro_batch = last.micro_batch;
    one.code.chunk = last.chunk;
    one.code.weight_gradients = last.weight_gradients;
    one.code.recompute = last.recompute;
    return one;
  }

 private:
  /// The expression that the members compute together.
  struct Expression {
    std::string text;
    std::vector<std::pair<size_t, size_t>> inputs;  ///< pairs (index of an instruction, index of its input)
    std::vector<size_t> outputs;                    ///< indices of the members whose results are written
    std::map<BufferId, int> named;                  ///< names (numbers) of values that are used more than once
  };

  bool fits(size_t at) const {
    const VirtualInstruction &first = c_.code[members_[0]], &v = c_.code[at];
    const Instruction &a = first.code, &b = v.code;
    return !tokens_[at].empty() && like(a.outputs[0], b.outputs[0]) && a.micro_batch == b.micro_batch &&
           a.chunk == b.chunk && a.phase == b.phase && a.weight_gradients == b.weight_gradients &&
           a.recompute == b.recompute && maker(v.outputs[0]) < 0;
  }

  bool reads_chain(const VirtualInstruction& v) const {
    return std::ranges::any_of(v.inputs, [&](BufferId in) { return maker(in) >= 0; });
  }

  /// True if `v` reads an operand that has the shape of its output (no broadcast row) and that the chain reads too.
  bool shares_input(const VirtualInstruction& v) const {
    for (size_t i = 0; i < v.inputs.size(); ++i) {
      if (!like(v.code.inputs[i], v.code.outputs[0])) continue;
      for (size_t m = 0; m < members_.size(); ++m)
        if (names(at(m).inputs, v.inputs[i])) return true;
    }
    return false;
  }

  bool is_within_limits() const {
    const Expression expression = this->expression();
    return is_expression(expression.text) && expression.inputs.size() <= kMostElementwiseInputs;
  }

  bool add_within_limits(size_t at) {
    members_.push_back(at);
    if (is_within_limits()) return true;
    members_.pop_back();
    return false;
  }

  /// The buffers that the instruction `v` reads: its inputs, and the inputs of the inlined values among them.
  std::vector<BufferId> sources_of(const VirtualInstruction& v) const {
    std::vector<BufferId> sources = v.inputs;
    for (const BufferId in : v.inputs)
      if (const auto& value = inlined_[in]) {
        sources.insert(sources.end(), value->sources.begin(), value->sources.end());
        // The input of an inlined function, which may be a value of the chain.
        const std::vector<BufferId>& direct = c_.code[value->instruction].inputs;
        sources.insert(sources.end(), direct.begin(), direct.end());
      }
    return sources;
  }

  Expression expression() const {
    Expression made;
    for (size_t m = 0; m < members_.size(); ++m) {
      if (!is_output(m)) continue;
      push_value(m, made);
      made.text.append("=").append(std::to_string(made.outputs.size())).append(" ");
      made.outputs.push_back(m);
    }
    made.text.pop_back();
    return made;
  }

  const VirtualInstruction& at(size_t m) const { return c_.code[members_[m]]; }

  /// The index of the member that writes the buffer, or -1.
  int maker(BufferId buffer) const {
    for (size_t m = 0; m < members_.size(); ++m)
      if (at(m).outputs[0] == buffer) return static_cast<int>(m);
    return -1;
  }

  int reads_inside(BufferId buffer) const {
    int count = 0;
    for (size_t member : members_)
      count += static_cast<int>(std::count(c_.code[member].inputs.begin(), c_.code[member].inputs.end(), buffer));
    return count;
  }

  /// Counts how often members use an inlined value, directly or by a function of it.
  int uses_of(BufferId buffer) const {
    int count = reads_inside(buffer);
    std::vector<BufferId> functions;
    for (size_t member : members_)
      for (BufferId in : c_.code[member].inputs) {
        const auto& value = inlined_[in];
        if (!value || value->is_low_rank || names(functions, in)) continue;
        functions.push_back(in);
        count += c_.code[value->instruction].inputs[0] == buffer ? 1 : 0;
      }
    return count;
  }

  bool is_output(size_t m) const {
    const BufferId buffer = at(m).outputs[0];
    return is_persistent(c_.buffers[buffer].kind) || reads_[buffer] != reads_inside(buffer) || reads_[buffer] == 0;
  }

  /// Appends a reference to the value if it has a name, that is, if it was computed before. Returns whether it had one.
  static bool push_named(BufferId buffer, Expression& made) {
    const auto name = made.named.find(buffer);
    if (name == made.named.end()) return false;
    made.text.append("$").append(std::to_string(name->second)).append(" ");
    return true;
  }

  static void give_name(BufferId buffer, Expression& made) {
    const int name = static_cast<int>(made.named.size());
    made.named[buffer] = name;
    made.text.append(":").append(std::to_string(name)).append(" ");
  }

  /// Appends the tokens that compute the output of member `m`. If the value is used more than once, it also gets a
  /// name.
  void push_value(size_t m, Expression& made) const {
    const BufferId out = at(m).outputs[0];
    if (push_named(out, made)) return;
    for (size_t i = 0; i < at(m).inputs.size(); ++i) push_operand(members_[m], i, made);
    made.text.append(tokens_[members_[m]]).append(" ");
    if (reads_inside(out) + (is_output(m) ? 1 : 0) > 1) give_name(out, made);
  }

  void push_operand(size_t instruction, size_t i, Expression& made) const {
    const BufferId buffer = c_.code[instruction].inputs[i];
    if (const int from = maker(buffer); from >= 0) return push_value(static_cast<size_t>(from), made);
    if (inlined_[buffer]) return push_inlined(buffer, made);
    const VirtualInstruction& v = c_.code[instruction];
    const size_t k = find_input(instruction, i, made, 0);
    if (k == made.inputs.size()) made.inputs.emplace_back(instruction, i);
    made.text.append(like(v.code.inputs[i], v.code.outputs[0]) ? "x" : "b").append(std::to_string(k)).append(" ");
  }

  /// Appends the tokens that compute an inlined value.
  void push_inlined(BufferId buffer, Expression& made) const {
    if (push_named(buffer, made)) return;
    const InlinedValue& value = *inlined_[buffer];
    if (value.is_low_rank) {
      push_operand(value.instruction, 2, made);
      push_factors(value, made);
      made.text.append("+ ");
    } else {
      push_operand(value.instruction, 0, made);
      made.text.append(value.token).append(" ");
    }
    if (uses_of(buffer) > 1 && made.named.size() < size_t{kMostElementwiseNames}) give_name(buffer, made);
  }

  /// Appends the product of two factors, which become adjacent inputs of the expression.
  void push_factors(const InlinedValue& value, Expression& made) const {
    size_t k = find_input(value.instruction, 0, made, 0);
    while (k < made.inputs.size() && find_input(value.instruction, 1, made, k + 1) != k + 1)
      k = find_input(value.instruction, 0, made, k + 1);
    if (k >= made.inputs.size()) {
      k = made.inputs.size();
      made.inputs.emplace_back(value.instruction, 0);
      made.inputs.emplace_back(value.instruction, 1);
    }
    made.text.append(value.token).append(std::to_string(k)).append(" ");
  }

  /// The index of the first input from `first` on that is this operand; the number of inputs if there is none.
  size_t find_input(size_t instruction, size_t i, const Expression& made, size_t first) const {
    const VirtualInstruction& v = c_.code[instruction];
    for (size_t k = first; k < made.inputs.size(); ++k) {
      const auto [known, input] = made.inputs[k];
      const Operand &a = c_.code[known].code.inputs[input], &b = v.code.inputs[i];
      if (c_.code[known].inputs[input] == v.inputs[i] && a.offset == b.offset && a.shape == b.shape) return k;
    }
    return made.inputs.size();
  }

  const Compiler& c_;
  const std::vector<int>& reads_;           // by buffer
  const std::vector<std::string>& tokens_;  // by instruction
  const Inlined& inlined_;
  std::vector<size_t> members_;
};

/// Adds all later instructions that the chain can take. Returns the index at which the fused instruction is placed.
size_t grow(const Compiler& c, Chain& chain, const std::vector<std::string>& tokens, const std::vector<bool>& gone) {
  const size_t first = chain.members()[0];
  const bool backward = c.code[first].code.phase == Phase::backward;
  int between = 0;
  for (size_t j = first + 1; j < c.code.size() && between <= kMostBetween; ++j) {
    if (gone[j] || chain.add(j) || (backward && chain.add_beside(j))) continue;
    if (chain.is_stopped_by(c.code[j])) break;
    if (tokens[j].empty()) ++between;
  }
  const size_t place = chain.members().back();
  if (!backward) return place;
  between = 0;
  for (size_t j = place + 1; j < c.code.size() && between <= kMostBetween; ++j)
    if (!gone[j] && !chain.add_from_below(j, place, gone) && tokens[j].empty()) ++between;
  return place;
}

}  // namespace

void fuse_elementwise(Compiler& c) {
  std::vector<int> reads(c.buffers.size());
  for (const VirtualInstruction& v : c.code)
    for (BufferId buffer : v.inputs) ++reads[buffer];
  std::vector<std::string> tokens;
  for (const VirtualInstruction& v : c.code) tokens.push_back(token_of(v));
  const Inlined inlined = inlined_values(c, tokens);
  std::vector<bool> gone(c.code.size());
  for (const auto& value : inlined)
    if (value) gone[value->instruction] = true;
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (gone[i] || tokens[i].empty()) continue;
    Chain chain(c, reads, tokens, inlined, i);
    const size_t place = grow(c, chain, tokens, gone);
    if (chain.size() < 2 && !chain.has_inlined()) continue;
    VirtualInstruction one = chain.fused();
    for (size_t member : chain.members()) gone[member] = true;
    gone[place] = false;
    c.code[place] = std::move(one);
    tokens[place] = token_of(c.code[place]);
  }
  size_t kept = 0;
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (!gone[i] && kept++ != i) c.code[kept - 1] = std::move(c.code[i]);
  }
  c.code.resize(kept);
}

}  // namespace trainctl
