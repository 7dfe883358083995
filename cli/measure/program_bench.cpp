// Times the steps of programs that were made for a measurement (program_builder.h) with the executor that runs use:
// with its streams, the events between them, and its graphs.
#include "cli/measure/program_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>

#include "cli/measure/rank_processes.h"
#include "engine/base/error.h"
#include "engine/base/round_up.h"
#include "engine/graph/bf16.h"
#include "engine/ops/kernel.h"
#include "engine/ops/random.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/runtime/cuda/cuda_executor.h"
#include "engine/runtime/measure/sampling.h"

namespace trainctl {
namespace {

constexpr double kProgramTimeoutSeconds = 60;
constexpr double kProgramSampleSeconds = 30e-3;

std::shared_ptr<SharedMemory> memory_for(const RankPrograms& programs, Device device) {
  std::vector<int64_t> arenas;
  std::vector<Route> routes;
  for (const Program& program : programs) {
    arenas.push_back(device == Device::cuda ? 64 : program.arena_bytes);
    for (const Instruction& i : program.instructions)
      if (i.opcode == Opcode::send) routes.push_back({program.rank, i.peer});
  }
  return SharedMemory::create(arenas, routes);
}

std::unique_ptr<Executor> make_executor(const Program& program, SharedMemory& memory, Communicator& ranks,
                                        Device device) {
  if (device == Device::cuda) return make_cuda_executor(program, ranks, {}, {.device = program.rank});
  return make_cpu_executor(program, ranks, {}, memory.arena(program.rank));
}

/// Numbers in (-1, 1), whether read as bf16 or as f32.
void fill(Executor& executor, const Program& program) {
  std::vector<uint16_t> numbers(1 << 20);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = to_bf16(2 * philox_uniform(1, i, 0) - 1);
  const auto all = static_cast<int64_t>(numbers.size() * sizeof(numbers[0]));
  for (int64_t at = round_up(static_cast<int64_t>(sizeof(StepScalars)), 64); at < program.arena_bytes; at += all)
    executor.write(at, numbers.data(), std::min(all, program.arena_bytes - at));
}

/// Runs steps of one rank's program, as many in flight as the device accepts.
class Steps {
 public:
  explicit Steps(Executor& executor)
      : executor_(executor), inputs_(executor.allocate_inputs(executor.inputs().bytes)) {}

  /// Runs `count` steps and returns the seconds that they took.
  double run(int count) {
    const auto start = std::chrono::steady_clock::now();
    int in_flight = 0;
    for (int i = 0; i < count; ++i) {
      for (; in_flight == executor_.max_in_flight(); --in_flight) executor_.finish_step();
      executor_.start_step(inputs_.get(), {.step = step_++});
      ++in_flight;
    }
    for (; in_flight > 0; --in_flight) executor_.finish_step();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  Executor& executor_;
  const HostBlock inputs_;
  uint32_t step_ = 0;
};

/// Fills `seconds` with samples of the time of a step.
void time_steps(const Program& program, const std::shared_ptr<SharedMemory>& memory, Device device, Agreed& agreed,
                std::span<double> seconds) {
  constexpr int kFirst = 4;  // warm-up steps, which load libraries at first use and build the CUDA graph
  const auto ranks = make_shared_memory_communicator(memory, program.rank, kProgramTimeoutSeconds);
  const std::unique_ptr<Executor> executor = make_executor(program, *memory, *ranks, device);
  fill(*executor, program);
  Steps steps(*executor);
  steps.run(kFirst);
  const double seconds_per_step = agreed.most(steps.run(kFirst)) / kFirst;
  const auto count = static_cast<int>(std::clamp(kProgramSampleSeconds / seconds_per_step, 2.0, 2000.0));
  steps.run(count);
  for (double& sample : seconds) {
    agreed.barrier();
    sample = steps.run(count) / count;
  }
  agreed.barrier();  // no rank ends its communicators while another still uses them
}

}  // namespace

std::vector<Seconds> bench_programs(const std::vector<RankPrograms>& all, Device device, int samples) {
  const size_t ranks = all.at(0).size(), samples_per_program = static_cast<size_t>(samples);
  // Separate from the executors' communicators, which a GPU's watchdog informs, with a delay, about its rank's step.
  const auto agreement = SharedMemory::create(std::vector<int64_t>(ranks, 64));
  std::vector<std::shared_ptr<SharedMemory>> memories;
  for (const RankPrograms& programs : all) memories.push_back(memory_for(programs, device));
  const SharedValues<double> measured(all.size() * ranks * samples_per_program);
  const auto samples_of = [&](size_t program, size_t rank) {
    return std::span<double>(&measured[(program * ranks + rank) * samples_per_program], samples_per_program);
  };
  run_rank_processes(
      static_cast<int>(ranks),
      [&](int rank) {
        const auto r = static_cast<size_t>(rank);
        const auto together = make_shared_memory_communicator(agreement, rank, kProgramTimeoutSeconds);
        Agreed agreed(*together);
        for (size_t p = 0; p < all.size(); ++p) time_steps(all[p][r], memories[p], device, agreed, samples_of(p, r));
      },
      [&](int rank) {
        agreement->status(rank).state = RankState::failed;
        for (const auto& memory : memories) memory->status(rank).state = RankState::failed;
      });

  std::vector<Seconds> steps;
  for (size_t p = 0; p < all.size(); ++p) {
    std::vector<double> slowest(samples_per_program, 0.0);
    for (size_t r = 0; r < ranks; ++r)
      for (size_t i = 0; i < samples_per_program; ++i) slowest[i] = std::max(slowest[i], samples_of(p, r)[i]);
    steps.push_back({spread_of(slowest).median});
  }
  return steps;
}

}  // namespace trainctl
