// Builds programs instruction by instruction, to measure the time of a part of a step.
#include "cli/measure/program_builder.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "engine/base/round_up.h"
#include "engine/ops/kernel.h"
#include "engine/runtime/measure/collective_data.h"

namespace trainctl {
namespace {

constexpr int64_t kAlignment = 256;

Operand part_of(const Operand& operand, int64_t count) {
  Operand part = operand;
  part.shape = part.global_shape = {count};
  return part;
}

}  // namespace

ProgramBuilder::ProgramBuilder(int rank, int num_ranks, int64_t most_bytes) {
  program_.rank = rank;
  program_.scalars_offset = 0;
  program_.arena_bytes = round_up(static_cast<int64_t>(sizeof(StepScalars)), kAlignment);
  if (most_bytes == 0) return;
  program_.groups.emplace_back(static_cast<size_t>(num_ranks));
  std::iota(program_.groups[0].begin(), program_.groups[0].end(), 0);
  in_ = tensor({most_bytes / 4}, DType::f32);
  out_ = tensor({most_bytes / 4}, DType::f32);
}

Operand ProgramBuilder::tensor(Shape shape, DType dtype) {
  Operand operand;
  operand.offset = program_.arena_bytes;
  operand.shape = operand.global_shape = std::move(shape);
  operand.global_offset = Shape(operand.shape.size(), 0);
  operand.dtype = dtype;
  program_.arena_bytes += round_up(operand.bytes(), kAlignment);
  return operand;
}

int ProgramBuilder::add(Instruction instruction, std::vector<int> waits) {
  std::erase(waits, -1);
  instruction.waits = std::move(waits);
  program_.instructions.push_back(std::move(instruction));
  return static_cast<int>(program_.instructions.size()) - 1;
}

int ProgramBuilder::kernel(const char* op, std::vector<Operand> inputs, Operand output, Attrs attrs,
                           std::vector<int> waits) {
  Instruction kernel;
  kernel.opcode = Opcode::kernel;
  kernel.name = kernel.op = op;
  kernel.inputs = std::move(inputs);
  kernel.outputs = {std::move(output)};
  kernel.attrs = std::move(attrs);
  return add(std::move(kernel), std::move(waits));
}

int ProgramBuilder::collective(Collective kind, int64_t bytes, std::vector<int> waits) {
  const CollectiveSizes sizes = collective_sizes(kind, bytes, static_cast<int>(program_.groups.at(0).size()));
  Instruction call;
  call.opcode = Opcode::collective;
  call.name = to_string(kind);
  call.collective = kind;
  call.group = 0;
  call.stream = Stream::comm;
  call.inputs = {part_of(in_, sizes.in)};
  call.outputs = {part_of(out_, sizes.out)};
  return add(std::move(call), std::move(waits));
}

int ProgramBuilder::send(int peer, const Operand& data, std::vector<int> waits) {
  Instruction send;
  send.opcode = Opcode::send;
  send.name = "send";
  send.peer = peer;
  send.stream = Stream::send;
  send.inputs = {data};
  return add(std::move(send), std::move(waits));
}

int ProgramBuilder::recv(int peer, const Operand& data, std::vector<int> waits) {
  Instruction recv;
  recv.opcode = Opcode::recv;
  recv.name = "recv";
  recv.peer = peer;
  recv.stream = Stream::recv;
  recv.outputs = {data};
  return add(std::move(recv), std::move(waits));
}

}  // namespace trainctl
