// A loss and its gradient read the same prediction and label: one kernel computes both, at the loss's place. The
// gradient is then kept until its backward task, in the prediction's memory if no other instruction reads the
// prediction. If one does, both would have to be kept, so they are fused only if the backward task follows at once.
#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "engine/compile/passes.h"

namespace trainctl {
namespace {

/// The kernel of a loss; null if `v` is not a loss.
const KernelDef* loss_kernel(const VirtualInstruction& v) {
  const KernelDef* kernel = kernel_of(v.code);
  return kernel != nullptr && kernel->loss_with_grad != nullptr ? kernel : nullptr;
}

bool same_inputs(const VirtualInstruction& a, const VirtualInstruction& b) {
  if (a.inputs != b.inputs) return false;
  for (size_t i = 0; i < a.inputs.size(); ++i)
    if (a.code.inputs[i].offset != b.code.inputs[i].offset) return false;
  return true;
}

std::vector<size_t> losses_of(const Compiler& c) {
  std::vector<size_t> losses;
  for (size_t i = 0; i < c.code.size(); ++i)
    if (loss_kernel(c.code[i]) != nullptr) losses.push_back(i);
  return losses;
}

/// For each prediction of these losses, the instructions that use it, in ascending order. They are collected once for
/// all micro-batches, because a step may have tens of thousands of instructions.
std::map<BufferId, std::vector<size_t>> users_of_predictions(const Compiler& c, const std::vector<size_t>& losses) {
  std::map<BufferId, std::vector<size_t>> users;
  std::vector<bool> is_prediction(c.buffers.size(), false);
  for (size_t i : losses) is_prediction[static_cast<size_t>(c.code[i].inputs[0])] = true;
  for (size_t i = 0; i < c.code.size(); ++i)
    for (const std::vector<BufferId>* buffers : {&c.code[i].inputs, &c.code[i].outputs})
      for (const BufferId buffer : *buffers) {
        if (!is_prediction[static_cast<size_t>(buffer)]) continue;
        std::vector<size_t>& of_buffer = users[buffer];
        if (of_buffer.empty() || of_buffer.back() != i) of_buffer.push_back(i);
      }
  return users;
}

/// The kernel that computes the loss's gradient from the same operands; in a recomputed layer they differ. `users`:
/// of the prediction.
std::optional<size_t> gradient_of(const Compiler& c, const KernelDef& kernel, size_t loss,
                                  const std::vector<size_t>& users) {
  const VirtualInstruction& v = c.code[loss];
  for (const size_t i : users) {
    const VirtualInstruction& other = c.code[i];
    if (i <= loss || !is_kernel(other, *kernel.loss_grad)) continue;
    if (other.code.micro_batch != v.code.micro_batch || !same_inputs(v, other)) continue;
    return is_persistent(c.buffers[other.outputs[0]].kind) ? std::nullopt : std::optional(i);
  }
  return std::nullopt;
}

/// True if keeping the gradient takes no more memory than keeping the prediction did.
bool costs_nothing(const Compiler& c, size_t loss, size_t grad, const std::vector<size_t>& users) {
  const BufferId prediction = c.code[loss].inputs[0];
  const bool read_again = is_persistent(c.buffers[prediction].kind) ||
                          std::any_of(users.begin(), users.end(), [&](size_t i) { return i > loss && i != grad; });
  const auto of_another = [&](const VirtualInstruction& v) {
    return v.code.micro_batch != c.code[loss].code.micro_batch;
  };
  const auto first = c.code.begin() + static_cast<std::ptrdiff_t>(loss);
  return !read_again || std::none_of(first, c.code.begin() + static_cast<std::ptrdiff_t>(grad), of_another);
}

}  // namespace

void fuse_loss(Compiler& c) {
  const std::vector<size_t> losses = losses_of(c);
  if (losses.empty()) return;
  const std::map<BufferId, std::vector<size_t>> users = users_of_predictions(c, losses);
  std::vector<bool> removed(c.code.size(), false);
  for (size_t i : losses) {
    const KernelDef* kernel = loss_kernel(c.code[i]);
    const std::vector<size_t>& of_prediction = users.at(c.code[i].inputs[0]);
    const std::optional<size_t> grad = gradient_of(c, *kernel, i, of_prediction);
    if (!grad || !costs_nothing(c, i, *grad, of_prediction)) continue;
    VirtualInstruction& loss = c.code[i];
    VirtualInstruction& from = c.code[*grad];
    loss.code.op = kernel->loss_with_grad->name;
    loss.outputs.push_back(from.outputs[0]);
    loss.code.outputs.push_back(std::move(from.code.outputs[0]));
    removed[*grad] = true;
  }
  size_t index = 0;
  std::erase_if(c.code, [&](const VirtualInstruction&) { return removed[index++]; });
}

}  // namespace trainctl
