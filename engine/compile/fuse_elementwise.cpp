// Fuses chains of element-wise kernels into one, which reads each input once and writes only outputs that other
// instructions read: dropout(gelu(x + b)) is "x0 b1 + gelu dropout(0.1,42) =0". It replaces the last kernel of the
// chain.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "engine/compile/conflicts.h"
#include "engine/compile/passes.h"
#include "engine/ops/elementwise/expression.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

/// How many other instructions may stand between two of a chain: the first one's inputs are kept until the last.
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
  if (kernel == nullptr || kernel->element == nullptr || v.outputs.size() != 1 || v.code.outputs[0].accumulate)
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
  Chain(const Compiler& c, const std::vector<int>& reads, size_t first) : c_(c), reads_(reads), members_{first} {}

  size_t size() const { return members_.size(); }
  const std::vector<size_t>& members() const { return members_; }

  /// Adds it if it reads an output of the chain, is in the same task, and the result is still an expression.
  bool add(size_t at) {
    const VirtualInstruction &first = c_.code[members_[0]], &v = c_.code[at];
    const Instruction &a = first.code, &b = v.code;
    if (token_of(v).empty() || !like(a.outputs[0], b.outputs[0]) || a.micro_batch != b.micro_batch ||
        a.chunk != b.chunk || a.phase != b.phase || a.weight_gradients != b.weight_gradients || a.recompute != b.recompute)
      return false;
    const auto made_here = [&](BufferId buffer) { return maker(buffer) >= 0; };
    if (std::none_of(v.inputs.begin(), v.inputs.end(), made_here) || made_here(v.outputs[0])) return false;
    members_.push_back(at);
    if (fused()) return true;
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

  /// The fused instruction; empty if it exceeds a kernel's limits.
  std::optional<VirtualInstruction> fused() const {
    VirtualInstruction one;
    std::map<size_t, int> named;
    std::string text;
    for (size_t m = 0; m < members_.size(); ++m) {
      if (!is_output(m)) continue;
      text += value(m, one, named) + "=" + std::to_string(one.outputs.size()) + " ";
      one.outputs.push_back(at(m).outputs[0]);
      one.code.outputs.push_back(at(m).code.outputs[0]);
    }
    text.pop_back();
    if (!is_expression(text) || one.inputs.size() > kMostElementwiseInputs) return std::nullopt;
    const Instruction& last = at(members_.size() - 1).code;
    one.code.name = last.name;
    one.code.op = elementwise_kernel.name;
    one.code.attrs = {{"expression", text}};
    one.code.phase = last.phase;
    one.code.micro_batch = last.micro_batch;
    one.code.chunk = last.chunk;
    one.code.weight_gradients = last.weight_gradients;
    one.code.recompute = last.recompute;
    return one;
  }

 private:
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
  std::string value(size_t m, VirtualInstruction& one, std::map<size_t, int>& named) const {
    if (const auto name = named.find(m); name != named.end()) return "$" + std::to_string(name->second) + " ";
    std::string text;
    for (size_t i = 0; i < at(m).inputs.size(); ++i) {
      const int from = maker(at(m).inputs[i]);
      text += from >= 0 ? value(static_cast<size_t>(from), one, named) : input(at(m), i, one);
    }
    text += token_of(at(m)) + " ";
    if (reads_inside(m) + (is_output(m) ? 1 : 0) < 2) return text;
    const int name = static_cast<int>(named.size());
    named[m] = name;
    return text + ":" + std::to_string(name) + " ";
  }

  static std::string input(const VirtualInstruction& v, size_t i, VirtualInstruction& one) {
    const Operand& operand = v.code.inputs[i];
    size_t k = 0;
    while (k < one.inputs.size() && !(one.inputs[k] == v.inputs[i] && one.code.inputs[k].offset == operand.offset &&
                                      one.code.inputs[k].shape == operand.shape))
      ++k;
    if (k == one.inputs.size()) {
      one.inputs.push_back(v.inputs[i]);
      one.code.inputs.push_back(operand);
    }
    return (like(operand, v.code.outputs[0]) ? "x" : "b") + std::to_string(k) + " ";
  }

  const Compiler& c_;
  const std::vector<int>& reads_;  // by buffer
  std::vector<size_t> members_;
};

}  // namespace

void fuse_elementwise(Compiler& c) {
  std::vector<int> reads(c.buffers.size());
  for (const VirtualInstruction& v : c.code)
    for (BufferId buffer : v.inputs) ++reads[buffer];
  std::vector<bool> gone(c.code.size());
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (gone[i] || token_of(c.code[i]).empty()) continue;
    Chain chain(c, reads, i);
    int between = 0;
    for (size_t j = i + 1; j < c.code.size() && between <= kMostBetween; ++j) {
      if (gone[j] || chain.add(j)) continue;
      if (chain.is_stopped_by(c.code[j])) break;
      ++between;
    }
    if (chain.size() < 2) continue;
    VirtualInstruction one = *chain.fused();
    for (size_t member : chain.members()) gone[member] = true;
    const size_t last = chain.members().back();
    gone[last] = false;
    c.code[last] = std::move(one);
  }
  size_t kept = 0;
  for (size_t i = 0; i < c.code.size(); ++i) {
    if (!gone[i] && kept++ != i) c.code[kept - 1] = std::move(c.code[i]);
  }
  c.code.resize(kept);
}

}  // namespace trainctl
