// A loss and its gradient read the same prediction and label: one kernel computes both, at the loss's place. The
// gradient is then kept until its backward task, in the prediction's memory if no other instruction reads the
// prediction. If one does, both would have to be kept, so they are fused only if the backward task follows at once.
#include <algorithm>
#include <optional>

#include "engine/compile/passes.h"

namespace trainctl {
namespace {

/// The kernel of a loss; null if `v` is not a loss.
const KernelDef* loss_kernel(const VirtualInstruction& v) {
  const KernelDef* kernel = kernel_of(v.code);
  return kernel != nullptr && kernel->loss_with_grad != nullptr ? kernel : nullptr;
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

/// The kernel that computes the loss's gradient from the same operands; in a recomputed layer they differ.
std::optional<size_t> gradient_of(const Compiler& c, const KernelDef& kernel, size_t loss) {
  const VirtualInstruction& v = c.code[loss];
  for (size_t i = loss + 1; i < c.code.size(); ++i) {
    const VirtualInstruction& other = c.code[i];
    if (!is_kernel(other, *kernel.loss_grad)) continue;
    if (other.code.micro_batch != v.code.micro_batch || !same_inputs(v, other)) continue;
    return is_persistent(c.buffers[other.outputs[0]].kind) ? std::nullopt : std::optional(i);
  }
  return std::nullopt;
}

/// True if keeping the gradient takes no more memory than keeping the prediction did.
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
    const KernelDef* kernel = loss_kernel(c.code[i]);
    if (kernel == nullptr) continue;
    const std::optional<size_t> grad = gradient_of(c, *kernel, i);
    if (!grad || !costs_nothing(c, i, *grad)) continue;
    VirtualInstruction& loss = c.code[i];
    VirtualInstruction& from = c.code[*grad];
    loss.code.op = kernel->loss_with_grad->name;
    loss.outputs.push_back(from.outputs[0]);
    loss.code.outputs.push_back(std::move(from.code.outputs[0]));
    c.code.erase(c.code.begin() + static_cast<std::ptrdiff_t>(*grad));
  }
}

}  // namespace trainctl
