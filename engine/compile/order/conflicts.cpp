// Decides which instructions may be reordered: those that access no common bytes, or only read them.
#include "engine/compile/order/conflicts.h"

#include <algorithm>
#include <vector>

#include "engine/compile/order/accesses.h"

namespace trainctl {
namespace {

/// True if the two operands overlap on any rank of the class. The order of instructions must not depend on the shard of
/// a single rank.
bool share_bytes(BufferId of_a, const Operand& a, BufferId of_b, const Operand& b) {
  return of_a == of_b && a.reach_begin() < b.reach_end() && b.reach_begin() < a.reach_end();
}

/// Calls use(buffer, operand) for inputs and outputs until it returns true.
template <class Use>
bool any_operand(const VirtualInstruction& v, const Use& use) {
  for (size_t i = 0; i < v.inputs.size(); ++i)
    if (use(v.inputs[i], v.code.inputs[i])) return true;
  for (size_t i = 0; i < v.outputs.size(); ++i)
    if (use(v.outputs[i], v.code.outputs[i])) return true;
  return false;
}

}  // namespace

bool names(const std::vector<BufferId>& buffers, BufferId buffer) {
  return std::find(buffers.begin(), buffers.end(), buffer) != buffers.end();
}

bool touch_the_same(const VirtualInstruction& a, const VirtualInstruction& b) {
  return any_operand(a, [&](BufferId of_a, const Operand& in_a) {
    return any_operand(b, [&](BufferId of_b, const Operand& in_b) { return share_bytes(of_a, in_a, of_b, in_b); });
  });
}

bool conflict(const VirtualInstruction& a, const VirtualInstruction& b) {
  if (!touch_the_same(a, b)) return false;
  const std::vector<MemoryAccess> of_a = accesses(a.code), of_b = accesses(b.code);
  const auto buffer = [](const VirtualInstruction& v, size_t i) {
    return i < v.inputs.size() ? v.inputs[i] : v.outputs[i - v.inputs.size()];
  };
  for (size_t i = 0; i < of_a.size(); ++i) {
    for (size_t j = 0; j < of_b.size(); ++j) {
      if ((of_a[i].writes || of_b[j].writes) &&
          share_bytes(buffer(a, i), *of_a[i].operand, buffer(b, j), *of_b[j].operand))
        return true;
    }
  }
  return false;
}

bool can_move(const Compiler& c, const VirtualInstruction& v, size_t from, size_t to) {
  for (size_t i = std::min(from, to) + 1; i < std::max(from, to); ++i)
    if (conflict(v, c.code[i])) return false;
  return true;
}

void move_instruction(Compiler& c, size_t from, size_t to) {
  const auto at = [&](size_t i) { return c.code.begin() + static_cast<std::ptrdiff_t>(i); };
  if (from < to)
    std::rotate(at(from), at(from + 1), at(to + 1));
  else
    std::rotate(at(to), at(from), at(from + 1));
}

}  // namespace trainctl
