// Trains one rank's program: epochs, steps, learning rates, the data of each step.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/start_up.h"
#include "engine/runtime/cuda/cuda_executor.h"
#include "engine/runtime/executor.h"
#include "engine/train/data/loader.h"
#include "engine/train/job.h"
#include "engine/train/metrics.h"

namespace trainctl {

/// All are optional, and called on the thread that trains.
struct TrainHooks {
  std::function<void(const StepReport&)> on_step;
  std::function<void(const EpochReport&)> on_epoch;
  PrintSink print;
  std::function<void(const Instruction&)> on_communication;
  Timeline* timeline = nullptr;  ///< of the executor
  /// Asked once before each step is started (counted from 0, over the whole run); false ends the run there. A
  /// device has steps in flight: the step before may have been started and not yet reported.
  std::function<bool(int64_t step)> may_start;
  /// The first step is finished: where the time until then went. Before its on_step.
  std::function<void(const StartUpClock&)> on_first_step;
};

struct TrainOptions {
  int threads = 1;                            ///< for kernels
  std::span<std::byte> arena{};               ///< for the executor of a CPU; empty: it takes its own
  std::optional<CudaExecutorOptions> cuda{};  ///< on that GPU, rather than on the CPU
  std::optional<LeftOut> left_out{};          ///< for tests
  StartUpClock start_up{};                    ///< with what came before
};

struct TrainResult {
  int64_t steps = 0;
  bool stopped = false;  ///< before its end, by may_start
  float last_loss = 0;
  EpochReport last_epoch;
};

/// One rank while it trains. `job`, `program` and `comm` must outlive it.
///
/// Keeps the device busy: the next step is started before the loss of the last is read. With
/// train.sink_steps: N it looks at the losses when N steps are finished, or an epoch is; each is reported.
class Trainer {
 public:
  Trainer(const PlannedJob& job, const Program& program, Communicator& comm, TrainHooks hooks = {},
          const TrainOptions& options = {});

  int64_t steps_per_epoch() const { return loader_->steps_per_epoch(); }
  int64_t run_steps() const { return run_steps_; }
  bool done() const { return reported_ == run_steps_; }
  /// The report of the next step, after its hooks; nothing once the run is over, by its end or by may_start.
  /// Throws EnvError (CommError) where data or peers fail.
  std::optional<StepReport> run_step();
  Executor& executor() { return *executor_; }

 private:
  using Clock = std::chrono::steady_clock;

  void start_steps();
  void start_step();
  void finish_steps();
  StepReport finish_step();
  void finish_start_up();
  StepReport report_of(int64_t step) const;
  void end_of_epoch(const StepReport& report);

  const PlannedJob& job_;
  const Program& program_;
  TrainHooks hooks_;
  StartUpClock start_up_;
  int64_t run_steps_ = 0;
  int64_t started_ = 0, finished_ = 0, reported_ = 0;
  bool stopped_ = false;
  int max_ahead_ = 1;                ///< steps started and not finished
  Clock::time_point last_;           ///< when the last step was finished, or the first one started
  std::vector<StepReport> reports_;  ///< of the last look: steps up to finished_
  MeanLoss epoch_loss_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Loader> loader_;  ///< its blocks are the executor's, and its thread ends first
};

/// All steps of the job, or as many as hooks.may_start allows.
TrainResult train(const PlannedJob& job, const Program& program, Communicator& comm, const TrainHooks& hooks = {},
                  const TrainOptions& options = {});

/// Steps of the whole run: train.epochs of them, cut short by train.steps.
int64_t total_steps(const TrainSpec& spec, int64_t steps_per_epoch);

}  // namespace trainctl
