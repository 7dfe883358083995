// See the header.
#include "engine/train/profile/work.h"

#include <algorithm>
#include <array>
#include <vector>

namespace trainctl {
namespace {

constexpr std::array<std::string_view, 3> kReadWhatTheyWrite = {"sgd_update", "adam_update", "accumulate"};

double bytes_of(const TensorInfo& info) {
  return static_cast<double>(num_elements(info.shape)) * static_cast<double>(byte_size(info.dtype));
}

std::vector<TensorInfo> infos(const std::vector<Operand>& operands) {
  std::vector<TensorInfo> result;
  for (const Operand& operand : operands) result.push_back({operand.shape, operand.dtype});
  return result;
}

}  // namespace

Cost kernel_work(std::string_view kernel, std::span<const TensorInfo> in, std::span<const TensorInfo> out,
                 const Attrs& attrs) {
  if (const OpDef* op = find_op(kernel)) return op->cost(in, out, attrs);
  const bool updates =
      std::find(kReadWhatTheyWrite.begin(), kReadWhatTheyWrite.end(), kernel) != kReadWhatTheyWrite.end();
  Cost cost;
  for (const TensorInfo& info : in) cost.bytes += bytes_of(info);
  for (const TensorInfo& info : out) cost.bytes += bytes_of(info) * (updates && info.dtype == DType::f32 ? 2 : 1);
  return cost;
}

Cost kernel_work(const Instruction& instruction) {
  const std::vector<TensorInfo> in = infos(instruction.inputs), out = infos(instruction.outputs);
  if (instruction.opcode == Opcode::kernel) return kernel_work(instruction.op, in, out, instruction.attrs);
  Cost cost;
  if (instruction.opcode == Opcode::load && !out.empty()) cost.bytes = 2 * bytes_of(out[0]);
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
