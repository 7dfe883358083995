// A loss and its gradient read the same prediction and label: one kernel makes both, where the loss stands. The
// gradient then waits for its backward task, in the prediction's place if nobody else reads that; if somebody
// does, both have to be kept, so the two are joined only where the backward task follows at once.
#include <algorithm>
#include <optional>

#include "engine/compile/passes.h"
#include "engine/ops/loss_def.h"

namespace trainctl {
namespace {

/// The loss that the instruction computes; null where it computes none.
const LossDef* loss_of(const VirtualInstruction& v) {
  if (v.code.opcode != Opcode::kernel) return nullptr;
  for (const LossDef* loss : all_losses())
    if (v.code.op == loss->op) return loss;
  return nullptr;
}

bool names(const std::vector<BufferId>& buffers, BufferId buffer) {
  return std::find(buffers.begin(), buffers.end(), buffer) != buffers.end();
}

bool same_inputs(const VirtualInstruction& a, const VirtualInstruction& b) {
  if (a.inputs != b.inputs) return false;
  for (size_t i = 0; i < a.inputs.size(); ++i)
    if (a.code.inputs[i].offset != b.code.inputs[i].offset) return false;
  return true;
}

/// The kernel that makes the loss's gradient from the very same operands; a recompute has others.
std::optional<size_t> gradient_of(const Compiler& c, size_t loss, const LossDef& def) {
  const VirtualInstruction& v = c.code[loss];
  for (size_t i = loss + 1; i < c.code.size(); ++i) {
    const VirtualInstruction& other = c.code[i];
    if (other.code.opcode != Opcode::kernel || other.code.op != def.grad_op) continue;
    if (other.code.micro_batch != v.code.micro_batch || !same_inputs(v, other)) continue;
    return is_persistent(c.buffers[other.outputs[0]].kind) ? std::nullopt : std::optional(i);
  }
  return std::nullopt;
}

/// Whether keeping the gradient from the loss on takes no more memory than keeping the prediction did.
bool costs_nothing(const Compiler& c, size_t loss, size_t grad) {
  const BufferId prediction = c.code[loss].inputs[0];
  bool read_again = is_persistent(c.buffers[prediction].kind), other_work = false;
  for (size_t i = loss + 1; i < c.code.size(); ++i) {
    const VirtualInstruction& v = c.code[i];
    if (i != grad && (names(v.inputs, prediction) || names(v.outputs, prediction))) read_again = true;
    if (i < grad && v.code.micro_batch != c.code[loss].code.micro_batch) other_work = true;
  }
  return !read_again || !other_work;
}

}  // namespace

void fuse_loss(Compiler& c) {
  for (size_t i = 0; i < c.code.size(); ++i) {
    const LossDef* def = loss_of(c.code[i]);
    if (def == nullptr) continue;
    const std::optional<size_t> grad = gradient_of(c, i, *def);
    if (!grad || !costs_nothing(c, i, *grad)) continue;
    VirtualInstruction& loss = c.code[i];
    VirtualInstruction& from = c.code[*grad];
    loss.code.op = def->op_with_grad;
    loss.outputs.push_back(from.outputs[0]);
    loss.code.outputs.push_back(std::move(from.code.outputs[0]));
    c.code.erase(c.code.begin() + static_cast<std::ptrdiff_t>(*grad));
  }
}

}  // namespace trainctl
