// A kernel and the one that reads its result and the same inputs (KernelDef::next) become one: the mean of
// batch_norm and the variance about it, in one pass over x. Where ranks share the batch, a sum over them is in between,
// and both stay.
#include <algorithm>
#include <optional>

#include "engine/compile/order/conflicts.h"
#include "engine/compile/passes.h"

namespace trainctl {
namespace {

bool same_operand(BufferId a, const Operand& of_a, BufferId b, const Operand& of_b) {
  return a == b && of_a.offset == of_b.offset && of_a.bytes() == of_b.bytes();
}

/// True if `second` reads the inputs of `first` and then its outputs.
bool reads_result(const VirtualInstruction& first, const VirtualInstruction& second) {
  const size_t n = first.inputs.size();
  if (second.inputs.size() != n + first.outputs.size()) return false;
  for (size_t i = 0; i < second.inputs.size(); ++i) {
    const bool result = i >= n;
    if (!same_operand(second.inputs[i], second.code.inputs[i], result ? first.outputs[i - n] : first.inputs[i],
                      result ? first.code.outputs[i - n] : first.code.inputs[i]))
      return false;
  }
  return true;
}

/// Returns the index of the instruction that can be fused with `first`, at the place of `first`.
std::optional<size_t> next_of(const Compiler& c, size_t first) {
  const VirtualInstruction& v = c.code[first];
  const KernelDef* kernel = kernel_of(v.code);
  if (kernel == nullptr || kernel->next == nullptr) return std::nullopt;
  for (size_t i = first + 1; i < c.code.size() && c.code[i].code.micro_batch == v.code.micro_batch; ++i) {
    if (is_kernel(c.code[i], *kernel->next) && reads_result(v, c.code[i]))
      return can_move(c, c.code[i], i, first + 1) ? std::optional(i) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

void fuse_statistics(Compiler& c) {
  std::vector<bool> removed(c.code.size(), false);
  for (size_t i = 0; i < c.code.size(); ++i) {
    const std::optional<size_t> next = removed[i] ? std::nullopt : next_of(c, i);
    if (!next) continue;
    VirtualInstruction &one = c.code[i], &other = c.code[*next];
    one.code.op = kernel_of(one.code)->with_next->name;
    one.code.name += ", " + other.code.outputs[0].tensor;
    one.outputs.insert(one.outputs.end(), other.outputs.begin(), other.outputs.end());
    std::move(other.code.outputs.begin(), other.code.outputs.end(), std::back_inserter(one.code.outputs));
    removed[*next] = true;
  }
  size_t index = 0;
  std::erase_if(c.code, [&](const VirtualInstruction&) { return removed[index++]; });
}

}  // namespace trainctl
