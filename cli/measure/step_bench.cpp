// Times whole steps of a job on one rank in this process, data and host work included.
#include "cli/measure/step_bench.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include "engine/base/error.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/train/trainer/trainer.h"

namespace trainctl {
namespace {

/// Records when the instructions of the last steps ran.
class LastSteps final : public Timeline {
 public:
  explicit LastSteps(size_t instructions) : nanoseconds_(instructions), launched_(instructions) {
    for (std::vector<int64_t>& of_one : nanoseconds_) of_one.reserve(kSteps);
  }

  void begin() { begun_ = true; }
  bool begun() const { return begun_; }
  bool complete() const { return steps_ == kSteps; }
  bool wants(uint32_t) override {
    if (!begun_ || complete()) return false;
    ++steps_;
    return true;
  }
  void ran(const TimeSpan& span) override {
    const auto i = static_cast<size_t>(span.instruction);
    nanoseconds_[i].push_back(span.end_ns - span.begin_ns);
    launched_[i] = span.launched;
  }

  std::vector<MeasuredStep::Launch> launches() const {
    std::vector<MeasuredStep::Launch> launches(nanoseconds_.size());
    for (size_t i = 0; i < launches.size(); ++i) {
      if (launched_[i] == 0) continue;
      std::vector<int64_t> times = nanoseconds_[i];
      const auto middle = times.begin() + static_cast<long>(times.size() / 2);
      std::nth_element(times.begin(), middle, times.end());
      launches[i] = {{1e-9 * static_cast<double>(*middle)}, launched_[i]};
    }
    return launches;
  }

 private:
  static constexpr size_t kSteps = 5;
  bool begun_ = false;
  size_t steps_ = 0;
  std::vector<std::vector<int64_t>> nanoseconds_;
  std::vector<int> launched_;
};

/// The durations of the steps before the last ones, which are slower.
class StepTimes : public TrainObserver {
 public:
  explicit StepTimes(const LastSteps& last) : last_(last) {}

  void on_first_step(const StartUpClock&) override { start_ = Clock::now(); }
  void on_step(const StepReport& report) override {
    if (!last_.begun()) steps.push_back(report.seconds);
  }
  double since_first_step() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  std::vector<double> steps;

 private:
  using Clock = std::chrono::steady_clock;

  const LastSteps& last_;
  Clock::time_point start_;
};

}  // namespace

MeasuredStep measure_step(const PlannedJob& job, const Program& program, Seconds seconds, int threads) {
  constexpr size_t kLeast = 24;
  constexpr double kTimeout = 60;
  const bool on_gpu = job.spec.launch.device == Device::cuda;
  const auto memory = SharedMemory::create({on_gpu ? 0 : program.arena_bytes});
  const auto comm = make_shared_memory_communicator(memory, 0, kTimeout);
  TrainOptions options;
  if (on_gpu) {
    options.cuda.emplace();
    options.executor.threads = threads;
  } else {
    options.arena = memory->arena(0);
  }
  LastSteps last(program.instructions.size());
  StepTimes times(last);
  TrainObservers observers;
  observers.add(times);
  if (on_gpu) options.executor.timeline = &last;
  options.may_start = [&](int64_t) {
    if (times.steps.size() < kLeast || times.since_first_step() < seconds.value) return true;
    last.begin();
    return on_gpu && !last.complete();
  };
  train(job, program, *comm, observers, options);
  std::vector<double>& steps = times.steps;
  if (steps.empty()) throw EnvError("no step of " + job.spec.name + " was completed");
  const auto begin = steps.begin() + static_cast<long>(steps.size() / 4), middle = begin + (steps.end() - begin) / 2;
  if (on_gpu)
    return {{std::accumulate(begin, steps.end(), 0.0) / static_cast<double>(steps.end() - begin)}, last.launches()};
  std::nth_element(begin, middle, steps.end());
  return {{*middle}, {}};
}

}  // namespace trainctl
