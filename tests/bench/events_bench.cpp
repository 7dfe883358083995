// Measures the cost of TensorBoard's event files per step of the reference MLP: bench_events [STEPS] [ROUNDS], by
// default 1,000,000 and 9. Alternates steps with and without events in one run, and writes STEPS events alone, since
// their cost is less than the noise of a step. Counts CPU time of the training thread, so that other programs do not
// matter.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/planning/compile_job.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/files/event_file.h"
#include "engine/train/trainer/trainer.h"
#include "tests/train/function_observer.h"

using namespace trainctl;

namespace {

constexpr int64_t kStepsOfRound = 400;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Writes the same events per step as MetricsLog.
void write_step(EventFile& file, const StepReport& report) {
  file.write(report.run_step, {{"train/loss", static_cast<double>(report.loss)},
                               {"train/learning_rate", report.learning_rate},
                               {"train/seconds", report.seconds}});
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t events = argc > 1 ? std::atoll(argv[1]) : 1'000'000;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  const std::string folder = std::filesystem::temp_directory_path() / fmt::format("bench_events.{}", getpid());
  std::filesystem::create_directories(folder);
  {
    const PlannedJob job = plan_job(
        load_job(TRAINCTL_SOURCE_DIR "/configs/mnist_mlp.yaml",
                 {"launch.ranks=1", "launch.device=cpu", "parallel={mode: stand_alone}", "train={epochs: 1000000}"}));
    const Program program = compile(job, 0);
    const auto memory = SharedMemory::create({program.arena_bytes});
    const auto comm = make_shared_memory_communicator(memory, 0, 60);
    EventFile file(folder);
    bool writes = false;
    FunctionObserver seen;
    seen.step = [&](const StepReport& report) {
      if (writes) write_step(file, report);
    };
    TrainOptions options;
    options.arena = memory->arena(0);
    Trainer trainer(job, program, *comm, seen.alone(), options);
    const auto run = [&] {
      const double begin = cpu_seconds();
      for (int64_t i = 0; i < kStepsOfRound; ++i) trainer.run_step();
      return (cpu_seconds() - begin) / static_cast<double>(kStepsOfRound);
    };
    run();  // caches, and the first step
    std::vector<double> with, without;
    for (int round = 0; round < rounds; ++round) {
      writes = false;
      without.push_back(run());
      writes = true;
      with.push_back(run());
    }
    StepReport report;
    report.loss = 0.125F;
    report.learning_rate = 0.01;
    const double begin = cpu_seconds();
    for (report.run_step = 1; report.run_step <= events; ++report.run_step) write_step(file, report);
    const double event = (cpu_seconds() - begin) / static_cast<double>(events), step = median(without);
    fmt::print("a step of configs/mnist_mlp.yaml on one rank   {:9.2f} us\n", step * 1e6);
    fmt::print(
        "with events                                    {:9.2f} us, {:+.2f} % (medians of {} rounds of {} steps)\n",
        median(with) * 1e6, (median(with) / step - 1) * 100, rounds, kStepsOfRound);
    fmt::print("an event alone, of {:9} in one file       {:9.2f} us, {:.2f} % of a step\n", events, event * 1e6,
               event / step * 100);
  }
  uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) bytes += entry.file_size();
  fmt::print("{:.1f} MB\n", static_cast<double>(bytes) / 1e6);
  std::filesystem::remove_all(folder);
}
