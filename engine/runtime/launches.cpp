// Finds launches that need no rehearsal, and places for reports of progress, from programs alone.
#include "engine/runtime/launches.h"

#include <algorithm>
#include <set>
#include <string>

#include "engine/ops/kernel_def.h"

namespace trainctl {
namespace {

/// The largest alignment in bytes that matters: kernels choose the width of their accesses by the alignment of
/// operands.
constexpr int64_t kWidestAccess = 256;

void append_number(std::string& key, int64_t number) { key.append(std::to_string(number)).push_back(' '); }

void append_shape(std::string& key, const Shape& shape) {
  for (const int64_t size : shape) append_number(key, size);
  key.push_back(';');
}

/// Appends a text that is equal for two instructions if the calls of their kernels differ only in addresses.
void append_key(std::string& key, const Instruction& instruction, const std::vector<Instruction>& code, size_t first) {
  key.append(to_string(instruction.opcode)).append(" ").append(instruction.op).append(to_string(instruction.attrs));
  append_number(key, static_cast<int64_t>(instruction.stream));
  append_number(key, instruction.idle ? 1 : 0);
  append_number(key, static_cast<int64_t>(&instruction - &code[first]));
  for (const std::vector<Operand>* operands : {&instruction.inputs, &instruction.outputs}) {
    key.push_back('|');
    for (const Operand& operand : *operands) {
      key.append(to_string(operand.dtype)).push_back(' ');
      append_shape(key, operand.shape);
      append_shape(key, operand.global_shape);
      append_shape(key, operand.global_offset);
      append_number(key, operand.accumulate ? 1 : 0);
      append_number(key, is_host_offset(operand.offset) ? 1 : 0);
      append_number(key, operand.offset % kWidestAccess);
    }
  }
  for (const Operand& in : instruction.inputs)
    for (const Operand& out : instruction.outputs) key.push_back(in.offset == out.offset ? '=' : '-');
}

/// The estimated work of a kernel in floating-point operations, with its memory traffic converted to operations.
double work_of(const Instruction& instruction) {
  constexpr double kOperationsPerByte = 200;  // operations that a GPU computes while it transfers one byte of memory
  const Cost cost = kernel_cost(*kernel_of(instruction), infos_of(instruction.inputs), infos_of(instruction.outputs),
                                instruction.attrs);
  return cost.flops + kOperationsPerByte * cost.bytes;
}

}  // namespace

std::vector<size_t> distinct_launches(const Program& program, const std::vector<size_t>& leaders) {
  const std::vector<Instruction>& code = program.instructions;
  std::set<std::string> seen;
  std::vector<size_t> found;
  for (size_t n = 0; n < leaders.size(); ++n) {
    const size_t first = leaders[n], end = n + 1 < leaders.size() ? leaders[n + 1] : code.size();
    std::string key;
    for (size_t i = first; i < end; ++i) append_key(key, code[i], code, first);
    if (seen.insert(std::move(key)).second) found.push_back(first);
  }
  return found;
}

std::vector<size_t> progress_marks(const Program& program) {
  constexpr double kWorkBetween = 2e14;  // operations: a third of a second on a GPU of 2023, a few seconds in fp32
  std::vector<size_t> marks;
  double work = 0;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.opcode != Opcode::kernel) {
      if (communicates(instruction)) work = 0;
      continue;
    }
    const bool leads = instruction.launch < 0 || i == 0 || program.instructions[i - 1].launch != instruction.launch;
    if (work > kWorkBetween && leads) {
      marks.push_back(i);
      work = 0;
    }
    work += instruction.idle ? 0 : work_of(instruction);
  }
  return marks;
}

}  // namespace trainctl
