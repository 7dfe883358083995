// The work of an instruction, in numbers that become rates when divided by a time.
#include "engine/train/profile/work.h"

#include <algorithm>
#include <vector>

namespace trainctl {

Cost kernel_work(const Instruction& instruction) {
  const std::vector<TensorInfo> in = infos_of(instruction.inputs), out = infos_of(instruction.outputs);
  if (instruction.opcode == Opcode::kernel) return kernel_cost(get_kernel(instruction.op), in, out, instruction.attrs);
  Cost cost;
  if (instruction.opcode == Opcode::load && !out.empty()) cost.bytes = 2 * static_cast<double>(bytes_of(out[0]));
  return cost;
}

Cost work_of(const Program& program, const TimeSpan& span) {
  Cost all;
  for (int32_t i = 0; i < span.launched; ++i) {
    const Cost work = kernel_work(program.instructions[static_cast<size_t>(span.instruction + i)]);
    all.flops += work.flops;
    all.bytes += work.bytes;
  }
  return all;
}

std::string name_of(const Program& program, const TimeSpan& span) {
  std::string names;
  for (int32_t i = 0; i < std::max(span.launched, 1); ++i)
    names += (i == 0 ? "" : ", ") + program.instructions[static_cast<size_t>(span.instruction + i)].name;
  return names;
}

double bus_factor(Collective kind, int group_size) {
  if (kind == Collective::broadcast) return 1;
  const double once = (group_size - 1.0) / group_size;
  return kind == Collective::all_reduce ? 2 * once : once;
}

}  // namespace trainctl
