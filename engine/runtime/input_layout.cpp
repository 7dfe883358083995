// See the header.
#include "engine/runtime/input_layout.h"

namespace trainctl {
namespace {

bool alike(const Instruction& a, const Instruction& b) {
  const Operand &x = a.outputs[0], &y = b.outputs[0];
  return a.op == b.op && a.micro_batch == b.micro_batch && x.shape == y.shape && x.global_offset == y.global_offset;
}

}  // namespace

InputLayout input_layout(const Program& program) {
  InputLayout layout;
  layout.offsets.assign(program.instructions.size(), -1);
  std::vector<size_t> distinct;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& load = program.instructions[i];
    if (load.opcode != Opcode::load) continue;
    for (size_t earlier : distinct) {
      if (alike(program.instructions[earlier], load)) layout.offsets[i] = layout.offsets[earlier];
    }
    if (layout.offsets[i] >= 0) continue;
    distinct.push_back(i);
    layout.offsets[i] = layout.bytes;
    const int64_t bytes = load.outputs[0].bytes();
    layout.bytes += (bytes + InputLayout::kAlignment - 1) / InputLayout::kAlignment * InputLayout::kAlignment;
  }
  return layout;
}

}  // namespace trainctl
