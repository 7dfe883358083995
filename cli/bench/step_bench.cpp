// See the header.
#include "cli/bench/step_bench.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include "engine/base/error.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/train/trainer.h"

namespace trainctl {

Seconds measured_step(const PlannedJob& job, const Program& program, Seconds seconds, int threads) {
  using Clock = std::chrono::steady_clock;
  constexpr size_t kLeast = 24;
  constexpr double kTimeout = 60;
  const bool on_gpu = job.spec.launch.device == Device::cuda;
  const auto memory = SharedMemory::create({on_gpu ? 0 : program.arena_bytes});
  const auto comm = make_shared_memory_communicator(memory, 0, kTimeout);
  TrainOptions options;
  if (on_gpu) {
    options.cuda.emplace();
    options.threads = threads;
  } else {
    options.arena = memory->arena(0);
  }
  std::vector<double> steps;
  Clock::time_point start;
  TrainHooks hooks;
  hooks.on_first_step = [&](const StartUpClock&) { start = Clock::now(); };
  hooks.on_step = [&](const StepReport& report) { steps.push_back(report.seconds); };
  hooks.may_start = [&](int64_t) {
    return steps.size() < kLeast || std::chrono::duration<double>(Clock::now() - start).count() < seconds.value;
  };
  train(job, program, *comm, hooks, options);
  if (steps.empty()) throw EnvError("no step of " + job.spec.name + " was run");
  const auto begin = steps.begin() + static_cast<long>(steps.size() / 4), middle = begin + (steps.end() - begin) / 2;
  if (on_gpu) return {std::accumulate(begin, steps.end(), 0.0) / static_cast<double>(steps.end() - begin)};
  std::nth_element(begin, middle, steps.end());
  return {*middle};
}

}  // namespace trainctl
