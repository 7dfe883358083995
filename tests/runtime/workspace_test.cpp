// Tests of the GPU memory that ranks need outside their arenas, computed from programs alone.
#include "engine/runtime/workspace.h"

#include <doctest/doctest.h>

#include "engine/ops/cuda/cuda_scratch.h"
#include "engine/ops/kernel.h"
#include "engine/runtime/copied_collectives.h"

using namespace trainctl;

namespace {

constexpr int64_t kMiB = 1 << 20;

Operand floats(Shape shape) {
  Operand operand;
  operand.shape = operand.global_shape = std::move(shape);
  operand.global_offset.assign(operand.shape.size(), 0);
  return operand;
}

Program loading(int64_t elements) {
  Instruction load;
  load.opcode = Opcode::load;
  load.op = "data";
  load.outputs = {floats({elements})};
  Program program;
  program.instructions = {load};
  return program;
}

Instruction kernel(const std::string& op, std::vector<Operand> in, std::vector<Operand> out) {
  Instruction i;
  i.op = op;
  i.inputs = std::move(in);
  i.outputs = std::move(out);
  return i;
}

Instruction workspace_collective(Collective kind, int64_t in, int64_t out) {
  Instruction i;
  i.opcode = Opcode::collective;
  i.collective = kind;
  i.group = 0;
  i.inputs = {floats({in})};
  i.outputs = {floats({out})};
  return i;
}

Program of_ranks(int ranks, std::vector<Instruction> instructions) {
  Program program;
  program.groups.emplace_back();
  for (int r = 0; r < ranks; ++r) program.groups[0].push_back(r);
  program.instructions = std::move(instructions);
  return program;
}

}  // namespace

TEST_CASE("a slot of the staging memory has a step's inputs and scalars, one for each step in flight") {
  const Workspace w = workspace_of(loading(100), 2);
  CHECK(w.scalars == 448);  // 400 bytes, in whole cache lines
  CHECK(w.stride == 512);
  CHECK(w.slots == 2);
  CHECK(w.staging() == 1024);
  CHECK(w.scratch == 0);
  CHECK(w.bytes() == w.staging() + w.counter);
  CHECK(workspace_of(loading(100), 64).slots == 64);
}

TEST_CASE("slots of large inputs take 64 MiB, and there are at least two") {
  const Workspace several = workspace_of(loading(2 * kMiB), 64);  // 8 MiB
  CHECK(several.slots == 7);
  CHECK(several.staging() <= 64 * kMiB);
  CHECK(workspace_of(loading(50 * kMiB), 64).slots == 2);
  CHECK(workspace_of(loading(50 * kMiB), 1).slots == 1);
}

TEST_CASE("where the device keeps data, slots take no more than they would without") {
  for (int64_t kib : {1, 100, 1000, 21 * 1024, 22 * 1024, 40 * 1024}) {
    for (int wanted : {1, 2, 3, 64}) {
      const Program program = loading(kib * 256);
      const Workspace all = workspace_of(program, wanted);
      for (int64_t less : {int64_t{64}, kib * 512, kib * 1024 - 64}) {
        InputLayout inputs;
        inputs.bytes = less;
        const Workspace kept = workspace_with(inputs, program, wanted);
        CAPTURE(kib);
        CAPTURE(wanted);
        CAPTURE(less);
        CHECK(kept.bytes() <= all.bytes());
        CHECK(kept.slots >= all.slots);
      }
    }
  }
}

TEST_CASE("scratch is that of the kernel that asks for most: products, or many tokens of an embedding") {
  Program program = loading(4);
  program.instructions.push_back(kernel("relu", {floats({4})}, {floats({4})}));
  const int64_t sums = workspace_of(program, 2).scratch;
  CHECK(sums == 4 * kMiB);
  program.instructions.push_back(kernel("matmul", {floats({2, 2}), floats({2, 2})}, {floats({2, 2})}));
  const int64_t product = workspace_of(program, 2).scratch;
  CHECK(product == 32 * kMiB + 256);
  const Operand ids = floats({1 << 21}), dy = floats({1 << 21, 1024}), table = floats({50000, 1024});
  program.instructions.push_back(kernel("embedding_grad", {dy, ids}, {table}));
  // Two sums of 1,024 floats a window of 512 tokens; for each token two pairs, and counts.
  CHECK(workspace_of(program, 2).scratch > (int64_t{1} << 21) * (16 + 16));
  CHECK(workspace_of(program, 2).scratch < (int64_t{1} << 21) * (16 + 24));
}

TEST_CASE("copy engines need room for the others' part of the largest sum, and for flags") {
  const int64_t n = 16 * kMiB;  // elements: 64 MiB
  const CopyMemory all_reduce = copy_memory(of_ranks(4, {workspace_collective(Collective::all_reduce, n, n)}), 4);
  CHECK(all_reduce.flags == 768);
  CHECK(all_reduce.bytes == 768 + 3 * 16 * kMiB);  // a quarter, from each of three ranks
  CHECK(copy_memory(of_ranks(4, {workspace_collective(Collective::reduce_scatter, n, n / 4)}), 4).bytes ==
        all_reduce.bytes);
  CHECK(copy_memory(of_ranks(4, {workspace_collective(Collective::reduce_scatter, n, n / 4),
                                 workspace_collective(Collective::reduce_scatter, 2 * n, n / 2)}),
                    4)
            .bytes == 768 + 6 * 16 * kMiB);
  // Moved data goes directly to its place: only cudaMalloc's smallest chunk is needed.
  CHECK(copy_memory(of_ranks(4, {workspace_collective(Collective::all_gather, n / 4, n)}), 4).bytes == 2 * kMiB);
}

TEST_CASE("a large reduce_scatter is pulled in rounds, unless its result shares memory with its operand") {
  const int64_t n = 256 * kMiB;  // elements: 1 GiB
  for (const int ranks : {2, 4, 5}) {
    Instruction in_place = workspace_collective(Collective::reduce_scatter, n / ranks * ranks, n / ranks),
                apart = in_place;
    apart.outputs[0].offset = apart.inputs[0].bytes();
    const Program program = of_ranks(ranks, {in_place, apart});
    CHECK(pulled_at_once(program, program.instructions[0]) == n / ranks);
    const int64_t at_once = pulled_at_once(program, program.instructions[1]);
    CHECK(at_once % 64 == 0);
    CHECK((ranks - 1) * at_once * 4 <= kMostPulledBytes);
    CHECK((ranks - 1) * at_once * 4 > kMostPulledBytes - 4096);
    CHECK(copy_memory(of_ranks(ranks, {apart}), ranks).bytes <= kMostPulledBytes + 4096);
  }
}

TEST_CASE("copy engines take nothing for small collectives, sums of integers, large groups, and beside messages") {
  const int64_t n = 4 * kMiB;  // 16 MiB
  CHECK(copy_memory(of_ranks(2, {workspace_collective(Collective::all_reduce, n, n)}), 2).bytes > 0);
  CHECK(copy_memory(of_ranks(2, {workspace_collective(Collective::all_reduce, n - 1, n - 1)}), 2).bytes == 0);
  CHECK(copy_memory(of_ranks(17, {workspace_collective(Collective::all_reduce, n, n)}), 17).bytes == 0);
  Instruction integers = workspace_collective(Collective::all_reduce, n, n);
  integers.inputs[0].dtype = integers.outputs[0].dtype = DType::i32;
  CHECK(copy_memory(of_ranks(2, {integers}), 2).bytes == 0);
  Instruction send;
  send.opcode = Opcode::send;
  CHECK(copy_memory(of_ranks(2, {workspace_collective(Collective::all_reduce, n, n), send}), 2).bytes == 0);
}
