// An asynchronous worker: claims batches, and runs its program on each, between a pull and a push. It waits for servers
// only, never for another worker.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime/comm/shared_memory.h"
#include "engine/train/servers/client.h"
#include "engine/train/trainer/trainer.h"

namespace trainctl {

class AsyncWorker {
 public:
  /// The arguments must outlive the worker. `memory`'s BatchBoard is prepared. Servers save the state, so observers
  /// receive only reports.
  AsyncWorker(const PlannedJob& job, const Program& program, const SharedMemory& memory, Communicator& comm,
              const TrainObservers& observers = {}, const TrainOptions& options = {});

  /// Runs until no batch is left, or may_start returns false. The first remaining worker also validates, concurrently
  /// with the steps of the others: between two of its own batches, and once more when all batches have been applied.
  /// Throws as Trainer::run_step.
  TrainResult run();

  Executor& executor() { return *executor_; }
  const servers::Client& client() const { return client_; }

 private:
  using Clock = std::chrono::steady_clock;

  void join();
  bool run_batch();
  StepReport report_of(int64_t step) const;
  void report_step(StepReport report);
  void end_epoch();
  bool validation_is_due(int64_t steps) const;
  bool validates() const;
  void make_loader(std::unique_ptr<Dataset> set);
  int64_t next_batch();
  void make_evaluator();
  void validate(int64_t steps, int64_t applied);
  void end_by_rule(const ValidationReport& report);

  const PlannedJob& job_;
  const Program& program_;
  const SharedMemory& memory_;
  BatchBoard& board_;
  Communicator& comm_;
  const Optimizer optimizer_;
  const std::vector<TrainObserver*> observers_;
  const std::function<bool(int64_t step)> may_start_;
  const std::function<void(const EnvError&)> on_hang_;
  StartUpClock start_up_;
  int64_t run_steps_, steps_per_epoch_;
  servers::Client client_;
  const Program* validation_;  ///< null: the job has none
  int threads_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Evaluator> evaluator_;  ///< null: this worker has not validated
  std::unique_ptr<Loader> loader_;
  std::vector<int64_t> inherited_;  ///< batches that are claimed already, the first one last
  TrainResult result_;
  StepReport last_;  ///< report of the batch that ran last; run_step 0: none did
  EpochMeans epoch_means_;
  Clock::time_point epoch_start_, last_end_;
  int64_t validated_;
  BestValues best_;
  bool is_finite_;
  std::string stop_reason_;  ///< reason from this worker's validation; empty: it has not ended the run
};

}  // namespace trainctl
