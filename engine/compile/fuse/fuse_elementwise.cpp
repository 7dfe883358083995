// Fuses chains of element-wise kernels into one, which reads each input once and writes only outputs that other
// instructions read: dropout(gelu(x + b)) is "x0 b1 + gelu dropout(0.1,42) =0". It replaces the last kernel of the
// chain.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>

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

/// Instructions that may be fused, in list order.
class Chain {
 public:
  Chain(const Compiler& c, const std::vector<int>& reads, const std::vector<std::string>& tokens, size_t first)
      : c_(c), reads_(reads), tokens_(tokens), members_{first} {}

  size_t size() const { return members_.size(); }
  const std::vector<size_t>& members() const { return members_; }

  /// Adds it if it reads an output of the chain, is in the same task, and the result is still an expression.
  bool add(size_t at) {
    const VirtualInstruction &first = c_.code[members_[0]], &v = c_.code[at];
    const Instruction &a = first.code, &b = v.code;
    if (tokens_[at].empty() || !like(a.outputs[0], b.outputs[0]) || a.micro_batch != b.micro_batch ||
        a.chunk != b.chunk || a.phase != b.phase || a.weight_gradients != b.weight_gradients ||
        a.recompute != b.recompute)
      return false;
    const auto made_here = [&](BufferId buffer) { return maker(buffer) >= 0; };
    if (std::none_of(v.inputs.begin(), v.inputs.end(), made_here) || made_here(v.outputs[0])) return false;
    members_.push_back(at);
    const Expression expression = this->expression();
    if (is_expression(expression.text) && expression.inputs.size() <= kMostElementwiseInputs) return true;
    members_.pop_back();
    return false;
  }

  /// True if the chain cannot be moved past this instruction.
  bool is_stopped_by(const VirtualInstruction& other) const {
    for (size_t m : members_) {
      const VirtualInstruction& v = c_.code[m];
      if (names(other.inputs, v.outputs[0]) || names(other.outputs, v.outputs[0])) return true;
      for (BufferId in : v.inputs)
        if (names(other.outputs, in)) return true;
    }
    return false;
  }

  /// The fused instruction of a chain of several.
  VirtualInstruction fused() const {
    const Expression expression = this->expression();
    VirtualInstruction one;
    for (const auto& [member, input] : expression.inputs) {
      one.inputs.push_back(at(member).inputs[input]);
      one.code.inputs.push_back(at(member).code.inputs[input]);
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
    std::vector<std::pair<size_t, size_t>> inputs;  ///< each a member and its input
    std::vector<size_t> outputs;                    ///< members
    std::map<size_t, int> named;                    ///< members whose values are used again
  };

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

  /// The member that writes the buffer; -1: none.
  int maker(BufferId buffer) const {
    for (size_t m = 0; m < members_.size(); ++m)
      if (at(m).outputs[0] == buffer) return static_cast<int>(m);
    return -1;
  }

  int reads_inside(size_t m) const {
    int count = 0;
    for (size_t other : members_)
      count +=
          static_cast<int>(std::count(c_.code[other].inputs.begin(), c_.code[other].inputs.end(), at(m).outputs[0]));
    return count;
  }

  bool is_output(size_t m) const {
    const BufferId buffer = at(m).outputs[0];
    return is_persistent(c_.buffers[buffer].kind) || reads_[buffer] != reads_inside(m) || reads_[buffer] == 0;
  }

  /// Pushes the output of member m; a value used again gets a name.
  void push_value(size_t m, Expression& made) const {
    if (const auto name = made.named.find(m); name != made.named.end()) {
      made.text.append("$").append(std::to_string(name->second)).append(" ");
      return;
    }
    for (size_t i = 0; i < at(m).inputs.size(); ++i) {
      const int from = maker(at(m).inputs[i]);
      from >= 0 ? push_value(static_cast<size_t>(from), made) : push_input(m, i, made);
    }
    made.text.append(tokens_[members_[m]]).append(" ");
    if (reads_inside(m) + (is_output(m) ? 1 : 0) < 2) return;
    const int name = static_cast<int>(made.named.size());
    made.named[m] = name;
    made.text.append(":").append(std::to_string(name)).append(" ");
  }

  void push_input(size_t m, size_t i, Expression& made) const {
    const Operand& operand = at(m).code.inputs[i];
    const auto same = [&](const std::pair<size_t, size_t>& known) {
      const VirtualInstruction& v = at(known.first);
      const Operand& other = v.code.inputs[known.second];
      return v.inputs[known.second] == at(m).inputs[i] && other.offset == operand.offset &&
             other.shape == operand.shape;
    };
    const auto k = std::find_if(made.inputs.begin(), made.inputs.end(), same) - made.inputs.begin();
    if (k == static_cast<std::ptrdiff_t>(made.inputs.size())) made.inputs.emplace_back(m, i);
    made.text.append(like(operand, at(m).code.outputs[0]) ? "x" : "b").append(std::to_string(k)).append(" ");
  }

  const Compiler& c_;
  const std::vector<int>& reads_;           // by buffer
  const std::vector<std::string>& tokens_;  // by instruction
  std::vector<size_t> members_;
};

}  // namespace

void fuse_elementwise(Compiler& c) {
  std::vector<int> reads(c.buffers.size());
  for (const VirtualInstruction& v : c.code)
    for (BufferId buffer : v.inputs) ++reads[buffer];
  std::vector<std::string> tokens;
  for (const VirtualInstruction& v : c.code) tokens.push_back(token_of(v));
  std::vector<bool> gone(c.code.size());
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (gone[i] || tokens[i].empty()) continue;
    Chain chain(c, reads, tokens, i);
    int between = 0;
    for (size_t j = i + 1; j < c.code.size() && between <= kMostBetween; ++j) {
      if (gone[j] || chain.add(j)) continue;
      if (chain.is_stopped_by(c.code[j])) break;
      if (tokens[j].empty()) ++between;
    }
    if (chain.size() < 2) continue;
    VirtualInstruction one = chain.fused();
    for (size_t member : chain.members()) gone[member] = true;
    const size_t last = chain.members().back();
    gone[last] = false;
    c.code[last] = std::move(one);
    tokens[last] = token_of(c.code[last]);
  }
  size_t kept = 0;
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (!gone[i] && kept++ != i) c.code[kept - 1] = std::move(c.code[i]);
  }
  c.code.resize(kept);
}

}  // namespace trainctl
