// Trains one rank's program: epochs, steps, learning rates, the data of each step.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>

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
  const std::atomic<bool>* stop = nullptr;  ///< looked at between steps
};

struct TrainOptions {
  int threads = 1;               ///< for kernels
  std::span<std::byte> arena{};  ///< for the executor; empty: it takes its own
};

struct TrainResult {
  int64_t steps = 0;
  bool stopped = false;  ///< before its end, by the flag
  float last_loss = 0;
  EpochReport last_epoch;
};

/// One rank while it trains. `job`, `program` and `comm` must outlive it.
class Trainer {
 public:
  Trainer(const PlannedJob& job, const Program& program, Communicator& comm, TrainHooks hooks = {},
          const TrainOptions& options = {});

  int64_t steps_per_epoch() const { return loader_->steps_per_epoch(); }
  int64_t run_steps() const { return run_steps_; }
  bool done() const { return step_ == run_steps_; }
  /// One step, with its hooks. Throws EnvError (CommError) where data or peers fail.
  StepReport run_step();
  Executor& executor() { return *executor_; }

 private:
  void end_of_epoch(const StepReport& report);

  const PlannedJob& job_;
  const Program& program_;
  TrainHooks hooks_;
  int64_t run_steps_ = 0;
  int64_t step_ = 0;
  MeanLoss epoch_loss_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Executor> executor_;
};

/// All steps of the job, or as many as the stop flag allows.
TrainResult train(const PlannedJob& job, const Program& program, Communicator& comm, const TrainHooks& hooks = {},
                  const TrainOptions& options = {});

/// Steps of the whole run: train.epochs of them, cut short by train.steps.
int64_t total_steps(const TrainSpec& spec, int64_t steps_per_epoch);

}  // namespace trainctl
