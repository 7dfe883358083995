// An asynchronous worker: claims batches, and runs its program on each, between a pull and a push. It waits for servers
// alone, never for another worker.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/runtime/comm/shared_memory.h"
#include "engine/train/servers/client.h"
#include "engine/train/trainer/trainer.h"

namespace trainctl {

class AsyncWorker {
 public:
  /// All must outlive it. `memory`'s BatchBoard is prepared. Of the hooks, those of saves are not called: servers save.
  AsyncWorker(const PlannedJob& job, const Program& program, const SharedMemory& memory, Communicator& comm,
              TrainHooks hooks = {}, const TrainOptions& options = {});

  /// Until no batch is left, or may_start says no. The first worker that lives also validates, beside the others'
  /// steps: between two of its own batches, and once more when all are applied. Throws as Trainer::run_step.
  TrainResult run();

  Executor& executor() { return *executor_; }
  const servers::Client& client() const { return client_; }

 private:
  using Clock = std::chrono::steady_clock;

  void join();
  bool run_batch();
  StepReport report_of(int64_t step) const;
  void report_step(const StepReport& report);
  void end_epoch();
  bool validation_is_due(int64_t steps) const;
  bool validates() const;
  void make_evaluator();
  void validate(int64_t steps, int64_t applied);
  void end_by_rule(const ValidationReport& report);

  const PlannedJob& job_;
  const Program& program_;
  const SharedMemory& memory_;
  BatchBoard& board_;
  Communicator& comm_;
  const Optimizer optimizer_;
  TrainHooks hooks_;
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
