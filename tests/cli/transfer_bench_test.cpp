// Programs made to measure what transfers take within a step, run by processes of this host.
#include "cli/measure/transfer_bench.h"

#include <doctest/doctest.h>

#include <string>

#include "cli/measure/program_bench.h"
#include "engine/base/error.h"
#include "tests/gpu/gpus.h"

using namespace trainctl;

namespace {

/// A small kernel on each of two ranks, and `op` on rank 1.
RankPrograms two_ranks(const char* op, int count) {
  RankPrograms programs;
  for (int rank = 0; rank < 2; ++rank) {
    ProgramBuilder program(rank, 2, 4096);
    const Operand numbers = program.tensor({1 << 16}, DType::f32);
    for (int i = 0; i < count; ++i) program.kernel(rank == 0 ? "relu" : op, {numbers}, numbers);
    programs.push_back(program.take());
  }
  return programs;
}

}  // namespace

TEST_CASE("a step with more kernels takes longer, and takes as long as its slowest rank") {
  const std::vector<Seconds> steps =
      bench_programs({two_ranks("relu", 1), two_ranks("relu", 64), two_ranks("gelu", 64)}, Device::cpu, 3);
  REQUIRE(steps.size() == 3);
  CHECK(steps[0] > Seconds{});
  CHECK(steps[1] > 4 * steps[0]);
  CHECK(steps[2] > steps[1]);
}

TEST_CASE("ranks of very different speed make the same number of steps") {
  RankPrograms programs = two_ranks("gelu", 1);
  const Instruction slow = programs[1].instructions[0];
  programs[1].instructions.assign(200, slow);
  const std::vector<Seconds> steps = bench_programs({programs, two_ranks("relu", 1), programs}, Device::cpu, 5);
  CHECK(steps[0] > 20 * steps[1]);
  CHECK(steps[2] > 20 * steps[1]);
}

TEST_CASE("an instruction waits for those that it names, and a collective is over all ranks") {
  ProgramBuilder program(1, 3, 24);
  const Operand x = program.tensor({6}, DType::f32);
  const int relu = program.kernel("relu", {x}, x, {}, {-1});
  const int call = program.collective(Collective::reduce_scatter, 24, {relu, -1});
  program.recv(0, x, {call});
  const Program built = program.take();
  CHECK(built.groups == std::vector<std::vector<int>>{{0, 1, 2}});
  CHECK(built.instructions[0].waits.empty());
  CHECK(built.instructions[1].waits == std::vector<int>{relu});
  CHECK(built.instructions[1].bytes() == 24);
  CHECK(num_elements(built.instructions[1].outputs[0].shape) == 2);
  CHECK(built.instructions[2].waits == std::vector<int>{call});
  CHECK(x.offset + x.bytes() <= built.arena_bytes);
}

TEST_CASE("a rank that fails ends the bench with its error") {
  const RankPrograms bad = two_ranks("no_such_kernel", 1);
  CHECK_THROWS_WITH_AS((void)bench_programs({bad}, Device::cpu, 1),
                       doctest::Contains("benchmark rank 1 failed: no CPU kernel 'no_such_kernel'"), EnvError);
}

TEST_CASE("messages between processes move their bytes, so large ones take longer") {
  constexpr double kMoreThanAnyHost = 1e12;  // bytes per second
  bool are_in_order = false;
  for (int attempt = 0; attempt < 20 && !are_in_order; ++attempt) {  // a busy host delays a small message too
    const std::vector<MessageResult> results = bench_messages({1024, 1 << 20, 8 << 20}, Device::cpu, 3);
    REQUIRE(results.size() == 3);
    for (const MessageResult& result : results) {
      CAPTURE(result.bytes);
      CHECK(result.seconds.value > static_cast<double>(result.bytes) / kMoreThanAnyHost);
    }
    are_in_order = results[0].seconds < results[1].seconds && results[1].seconds < results[2].seconds;
  }
  CHECK(are_in_order);
}

TEST_CASE("messages between GPUs take longer the larger they are, and collectives are delayed beside products") {
  if (!have_gpus(2)) return;
  const std::vector<MessageResult> results = bench_messages({1024, 1 << 20, 16 << 20}, Device::cuda, 5);
  REQUIRE(results.size() == 3);
  CHECK(results[0].seconds > Seconds{1e-6});
  CHECK(results[1].seconds > results[0].seconds);
  CHECK(results[2].seconds > results[1].seconds);
  CHECK(results[2].seconds < Seconds{1e-2});
  const OverlapResult overlap = bench_overlap(2, Device::cuda, 5);
  CHECK(overlap.delays.beside >= overlap.delays.exposed);
  CHECK(overlap.delays.beside < Seconds{1e-3});
  CHECK(overlap.cost < 2);
}
