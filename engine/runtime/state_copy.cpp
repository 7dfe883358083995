// Copies of the state (weights, optimizer state, statistics), made for checkpoints while the next steps run.
#include "engine/runtime/state_copy.h"

#include <algorithm>
#include <numeric>

namespace trainctl {
namespace {

/// Calls write(begin, end) with the arena bytes of each operand that the instruction changes.
template <class Write>
void for_each_write(const Instruction& instruction, const Write& write) {
  const KernelDef* kernel = kernel_of(instruction);
  for (size_t i = 0; kernel != nullptr && i < instruction.inputs.size(); ++i) {
    const Operand& input = instruction.inputs[i];
    if ((kernel->updates_input >> i & 1u) != 0) write(input.offset, input.offset + input.bytes());
  }
  for (const Operand& output : instruction.outputs) write(output.offset, output.offset + output.bytes());
}

}  // namespace

std::vector<int> first_writers(const Program& program, const std::vector<StateCopy>& copies) {
  const auto none = static_cast<int>(program.instructions.size());
  std::vector<int> writers(copies.size(), none);
  std::vector<size_t> order(copies.size());  // copies do not overlap: sorted by offset they are sorted by end
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return copies[a].offset < copies[b].offset; });
  const auto end_of = [&](size_t copy) { return copies[copy].offset + copies[copy].bytes; };
  for (int i = none - 1; i >= 0; --i) {
    for_each_write(program.instructions[static_cast<size_t>(i)], [&](int64_t begin, int64_t end) {
      auto at = std::partition_point(order.begin(), order.end(), [&](size_t copy) { return end_of(copy) <= begin; });
      for (; at != order.end() && copies[*at].offset < end; ++at) writers[*at] = i;
    });
  }
  return writers;
}

}  // namespace trainctl
