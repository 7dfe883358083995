// Tests of StateCopier: whatever a step overwrites, and whenever it does, the copy is the state before the step.
#include "engine/runtime/cpu/state_copier.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

using namespace trainctl;

namespace {

Operand bytes_at(int64_t offset, int64_t bytes) {
  Operand operand;
  operand.offset = offset;
  operand.shape = operand.global_shape = {bytes / 4};
  operand.global_offset = {0};
  return operand;
}

Instruction writes(std::vector<Operand> outputs) {
  Instruction instruction;
  instruction.opcode = Opcode::recv;
  instruction.outputs = std::move(outputs);
  return instruction;
}

/// Ranges of 4-byte elements that do not overlap, in any order, each with its place in the copy.
std::vector<StateCopy> random_copies(std::mt19937& random, int64_t arena_bytes) {
  std::vector<StateCopy> copies;
  for (int64_t at = 0; at < arena_bytes;) {
    const int64_t bytes = std::min<int64_t>(arena_bytes - at, 4 * (1 + static_cast<int64_t>(random() % 200'000)));
    if (random() % 3 != 0) copies.push_back({at, 0, bytes});
    at += bytes;
  }
  std::shuffle(copies.begin(), copies.end(), random);
  int64_t to = 0;
  for (StateCopy& copy : copies) to = (copy.to = to) + copy.bytes;
  return copies;
}

Program random_program(std::mt19937& random, int64_t arena_bytes) {
  Program program;
  const size_t count = 1 + random() % 12;
  for (size_t i = 0; i < count; ++i) {
    std::vector<Operand> outputs;
    for (size_t o = random() % 4; o > 0; --o) {
      const int64_t offset = 4 * static_cast<int64_t>(random() % static_cast<size_t>(arena_bytes / 4));
      outputs.push_back(bytes_at(
          offset, std::min<int64_t>(arena_bytes - offset, 4 * (1 + static_cast<int64_t>(random() % 100'000)))));
    }
    program.instructions.push_back(writes(std::move(outputs)));
  }
  return program;
}

void run_step(const Program& program, StateCopier& copier, std::vector<std::byte>& arena, uint8_t value) {
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    copier.before(static_cast<int>(i));
    for (const Operand& output : program.instructions[i].outputs)
      std::memset(arena.data() + output.offset, value, static_cast<size_t>(output.bytes()));
  }
}

}  // namespace

TEST_CASE("a copy is the state before the step, although steps overwrite it meanwhile") {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    const int64_t arena_bytes = 4 * (1 + static_cast<int64_t>(random() % 500'000));
    const std::vector<StateCopy> copies = random_copies(random, arena_bytes);
    const Program program = random_program(random, arena_bytes);
    std::vector<std::byte> arena(static_cast<size_t>(arena_bytes)), to(arena.size());
    StateCopier copier(program, arena.data(), copies, to.data());
    for (uint8_t save = 0; save < 4; ++save) {
      std::generate(arena.begin(), arena.end(), [&] { return static_cast<std::byte>(random()); });
      const std::vector<std::byte> before = arena;
      copier.begin();
      run_step(program, copier, arena, save);
      if (save % 2 == 0)
        run_step(program, copier, arena, static_cast<uint8_t>(save + 100));  // the copy is not done yet
      copier.finish();
      CHECK(copier.is_done());
      for (const StateCopy& copy : copies)
        CHECK(std::memcmp(to.data() + copy.to, before.data() + copy.offset, static_cast<size_t>(copy.bytes)) == 0);
      run_step(program, copier, arena, 7);  // of a step without a save
    }
  }
}

TEST_CASE("a copy is done once finish() returns, even if the copier's thread copied the last piece") {
  std::vector<std::byte> arena(256), to(arena.size());
  StateCopier copier(Program(), arena.data(), {{0, 0, 64}, {64, 64, 64}, {128, 128, 64}}, to.data());
  int unfinished = 0;
  for (int copy = 0; copy < 50'000; ++copy) {
    copier.begin();
    copier.finish();
    if (!copier.is_done()) ++unfinished;
    while (!copier.is_done()) std::this_thread::yield();  // begin() requires it
  }
  CHECK(unfinished == 0);
}

TEST_CASE("a copier that ends with a copy under way, or with nothing to copy, ends") {
  std::vector<std::byte> arena(8 << 20), to(arena.size());
  Program program;
  program.instructions.push_back(writes({bytes_at(0, 64)}));
  {
    StateCopier copier(program, arena.data(), {{0, 0, static_cast<int64_t>(arena.size())}}, to.data());
    copier.begin();
  }
  StateCopier copier(program, arena.data(), {}, to.data());
  copier.begin();
  run_step(program, copier, arena, 1);
  CHECK(copier.is_done());
}

TEST_CASE("the first writer of a range is the first instruction that changes any byte of it") {
  Program program;
  program.instructions.push_back(writes({bytes_at(0, 8)}));
  program.instructions.push_back(writes({bytes_at(16, 8), bytes_at(8, 4)}));
  program.instructions.push_back(writes({bytes_at(0, 32)}));
  const std::vector<StateCopy> copies = {{20, 0, 8}, {4, 8, 4}, {8, 12, 8}, {28, 20, 4}, {32, 24, 8}};
  CHECK(first_writers(program, copies) == std::vector<int>{1, 0, 1, 2, 3});
}
