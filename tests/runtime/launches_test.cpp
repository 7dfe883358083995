// Tests of which launches a device rehearses, and where it reports its position.
#include "engine/runtime/launches.h"

#include <doctest/doctest.h>

#include <numeric>

using namespace trainctl;

namespace {

Operand at(int64_t offset, Shape shape) {
  Operand operand;
  operand.offset = offset;
  operand.shape = operand.global_shape = std::move(shape);
  operand.global_offset.assign(operand.shape.size(), 0);
  return operand;
}

Instruction product(int64_t offset, int64_t rows, int64_t cols = 64) {
  Instruction i;
  i.op = "matmul";
  i.inputs = {at(offset, {rows, cols}), at(offset + (1 << 20), {cols, cols})};
  i.outputs = {at(offset + (2 << 20), {rows, cols})};
  return i;
}

std::vector<size_t> distinct(std::vector<Instruction> instructions) {
  std::vector<size_t> leaders(instructions.size());
  std::iota(leaders.begin(), leaders.end(), 0);
  Program program;
  program.instructions = std::move(instructions);
  return distinct_launches(program, leaders);
}

using Found = std::vector<size_t>;

}  // namespace

TEST_CASE("launches that differ only in addresses are one kind") {
  CHECK(distinct({product(0, 8), product(4096, 8), product(0, 16), product(8192, 16)}) == Found{0, 2});
}

TEST_CASE("launches that a kernel can tell apart are two kinds") {
  Instruction accumulating = product(0, 8), aligned = product(64, 8), transposed = product(0, 8), part = product(0, 8),
              in_place = product(0, 8), on_host = product(0, 8), f16 = product(0, 8);
  accumulating.outputs[0].accumulate = true;
  transposed.attrs.set("transpose_a", true);
  part.inputs[0].global_offset = {8, 0};
  in_place.outputs[0].offset = in_place.inputs[0].offset;
  on_host.inputs[0].offset = kHostOffset;
  f16.inputs[0].dtype = DType::f16;
  CHECK(distinct({product(0, 8), accumulating, aligned, transposed, part, in_place, on_host, f16}).size() == 8);
}

TEST_CASE("a launch of several instructions is a kind of its own") {
  Program program;
  program.instructions = {product(0, 8), product(0, 8), product(0, 8), product(4096, 8), product(4096, 8)};
  CHECK(distinct_launches(program, {0, 1, 3}) == Found{0, 1});
}

TEST_CASE("only steps of much work report positions between communication") {
  Program program;
  for (int i = 0; i < 100; ++i) program.instructions.push_back(product(0, 1024));
  CHECK(progress_marks(program).empty());
  program.instructions.clear();
  for (int i = 0; i < 10; ++i) program.instructions.push_back(product(0, 1 << 20, 1 << 13));  // 1.4e14 operations
  CHECK(progress_marks(program) == Found{2, 4, 6, 8});
  for (size_t i = 1; i < 10; i += 2) program.instructions[i].launch = program.instructions[i - 1].launch = int(i);
  CHECK(progress_marks(program) == Found{2, 4, 6, 8});
  Instruction sum;
  sum.opcode = Opcode::collective;
  for (size_t i : {8, 6, 4, 2}) program.instructions.insert(program.instructions.begin() + std::ptrdiff_t(i), sum);
  CHECK(progress_marks(program).empty());
}
