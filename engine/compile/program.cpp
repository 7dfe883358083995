// Names of the enum values of a Program.
#include "engine/compile/program.h"

#include <algorithm>

namespace trainctl {

std::string_view to_string(Opcode opcode) {
  static constexpr std::string_view kNames[] = {"kernel", "load",  "collective", "send",
                                                "recv",   "print", "wait",       "copy"};
  return kNames[static_cast<int>(opcode)];
}

std::string_view to_string(Purpose purpose) {
  static constexpr std::string_view kNames[] = {"none", "redistribute", "statistics", "pipeline", "gradient", "weights",
                                                "clip", "loss",         "layer",      "offload",  "outer"};
  return kNames[static_cast<int>(purpose)];
}

std::string_view to_string(Stream stream) {
  static constexpr std::string_view kNames[] = {"compute", "comm", "send", "recv", "to_host", "from_host"};
  return kNames[static_cast<int>(stream)];
}

bool communicates(const Instruction& instruction) {
  return instruction.opcode == Opcode::collective || instruction.opcode == Opcode::send ||
         instruction.opcode == Opcode::recv;
}

std::vector<TensorInfo> infos_of(const std::vector<Operand>& operands) {
  std::vector<TensorInfo> infos;
  infos.reserve(operands.size());
  for (const Operand& operand : operands) infos.push_back({operand.shape, operand.dtype});
  return infos;
}

const KernelDef* kernel_of(const Instruction& instruction) {
  return instruction.opcode == Opcode::kernel ? &get_kernel(instruction.op) : nullptr;
}

bool is_update(const Instruction& instruction) {
  const KernelDef* kernel = kernel_of(instruction);
  return kernel != nullptr && kernel->updates_outputs;
}

size_t end_of_launch(const std::vector<Instruction>& instructions, size_t first) {
  size_t end = first + 1;
  while (instructions[first].launch >= 0 && end < instructions.size() &&
         instructions[end].launch == instructions[first].launch)
    ++end;
  return end;
}

Bucket::Piece Bucket::piece(int index) const {
  Piece p;
  p.name = pieces == 1 ? name : name + "." + std::to_string(index);
  p.elements = elements / pieces;
  p.first = index * p.elements;
  p.own_elements = p.elements / shards;
  p.own_first = p.first + shard * p.own_elements;
  p.kept_first = index * p.own_elements;
  return p;
}

int64_t Instruction::bytes() const {
  int64_t in = 0, out = 0;
  for (const Operand& operand : inputs) in += operand.bytes();
  if (opcode == Opcode::collective && inputs.size() > 1) in = inputs[0].bytes();  // not inputs[1], the counts of rows
  for (const Operand& operand : outputs) out += operand.bytes();
  return std::max(in, out);
}

}  // namespace trainctl
