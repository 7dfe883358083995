// Trains one rank's program: epochs, steps, learning rates, the data of each step.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/base/start_up.h"
#include "engine/ops/optimizer_def.h"
#include "engine/planning/planned_job.h"
#include "engine/planning/run_length.h"
#include "engine/runtime/cuda/cuda_executor.h"
#include "engine/runtime/executor.h"
#include "engine/train/checkpoint/train_position.h"
#include "engine/train/data/loader.h"
#include "engine/train/files/metrics.h"
#include "engine/train/trainer/evaluator.h"
#include "engine/train/trainer/learning_rate.h"
#include "engine/train/trainer/state_snapshot.h"
#include "engine/train/trainer/train_observer.h"

namespace trainctl {

class StepAudit;

/// The loss is nan or infinite, or gradients are at the least scale of the loss, and train.on_nan is stop. All ranks
/// throw it after the same step.
class LossNotFinite : public std::runtime_error {
 public:
  explicit LossNotFinite(const StepReport& report);
  LossNotFinite(const std::string& what, int64_t run_step) : std::runtime_error(what), run_step_(run_step) {}
  int64_t run_step() const { return run_step_; }

 private:
  int64_t run_step_;
};

struct TrainOptions {
  /// threads (the rank's share of the host's cores), print, on_communication, on_prepared, timeline and left_out; the
  /// trainer sets the other members.
  ExecutorOptions executor{};
  std::span<std::byte> arena{};               ///< for a CPU executor's arena; empty: it allocates one (make_executor)
  int shared_cache = -1;                      ///< keep_samples' `shared`
  std::optional<CudaExecutorOptions> cuda{};  ///< run on that GPU instead of the CPU
  /// For tests: creates a substitute for the executor of a GPU.
  std::function<std::unique_ptr<Executor>(const Program&, Communicator&, const ExecutorOptions&)> device{};
  StartUpClock start_up{};                   ///< started by the phases before this one
  TrainPosition from{};                      ///< where to start
  const Program* validation = nullptr;       ///< compile_validation; with `validation:` in the job
  const Program* averages = nullptr;         ///< compile_exchange; if validations use averages of the weights
  const Program* synchronization = nullptr;  ///< compile_synchronization; with parallel.local_steps
  /// validation.generate: called on all ranks at each validation, after `steps` steps. Rank 0 returns texts.
  std::function<std::vector<ValidationText>(int64_t steps, Executor&)> generate_texts{};
  StepAudit* audit = nullptr;         ///< train.audit_every; its communicator is the trainer's
  BatchExchange* exchange = nullptr;  ///< for tables on parameter servers; must outlive the training
  /// Called before the first step: replaces the initial weights by those of `from`.
  std::function<void(Executor&)> restore{};
  /// Called once before each step starts (counted from 0, over the whole run); false ends the run there. A device has
  /// steps in flight: the previous step may have started without being reported yet.
  std::function<bool(int64_t step)> may_start{};
  /// A sample cannot be read within launch.timeout. Called on the training thread; the thread that reads the sample may
  /// never return, so this call should end the process.
  std::function<void(const EnvError&)> on_hang{};
};

struct TrainResult {
  int64_t steps = 0;      ///< steps of this run: those before TrainOptions::from are not counted
  int64_t last_step = 0;  ///< over the whole run, from 1; 0: none
  std::string reason;     ///< reason of an early end by train.stop_when; else empty
  bool stopped = false;   ///< ended early, by may_start
  float last_loss = 0;
  EpochReport last_epoch;
  LoadSetting loading;  ///< setting that dataset.autotune settled on
  LoadWaits waits;      ///< for data
  SkippedSamples skipped;
};

/// The executor of a rank of the job: on the CPU or, with options.cuda, on a GPU, from where workers reach servers
/// through options.arena, which has room for the program and, if there is one, for options.validation.
std::unique_ptr<Executor> make_executor(const PlannedJob& job, const Program& program, Communicator& comm,
                                        const ExecutorOptions& executor_options, const TrainOptions& options);

/// Trains one rank. `job`, `program` and `comm` must outlive it.
///
/// Keeps the device busy: the next step starts before the loss of the last one is read. With
/// train.sink_steps: N the losses are read once N steps or an epoch are finished; each is reported.
class Trainer {
 public:
  Trainer(const PlannedJob& job, const Program& program, Communicator& comm, TrainObservers observers = {},
          const TrainOptions& options = {});

  int64_t steps_per_epoch() const { return loader_->steps_per_epoch(); }
  int64_t run_steps() const { return run_steps_; }
  bool done() const { return reported_ == run_steps_; }
  /// Returns the report of the next step, which the observers have received; nothing once the run has ended, by itself
  /// or by may_start. Throws EnvError (CommError) if data or peers fail, LossNotFinite after a step with such a loss
  /// was reported, and StateNotFinite at the end; no step is in flight then.
  std::optional<StepReport> run_step();
  /// Tells why train.stop_when has ended the run; empty: it has not.
  const std::string& stop_reason() const { return stop_reason_; }
  Executor& executor() { return *executor_; }
  /// The workers that read samples now, and the batches that they are ahead.
  LoadSetting loading() const { return loader_->setting(); }
  LoadWaits waits() const { return loader_->waits(); }
  SkippedSamples skipped() const { return loader_->skipped(); }

 private:
  using Clock = std::chrono::steady_clock;

  std::unique_ptr<Executor> make_beside(const ExecutorOptions& training, const Program& program);
  void exchange_averages();
  bool must_synchronize() const;
  void synchronize();
  void open_executors(Communicator& comm, Dataset& set, ExecutorOptions& training, const TrainOptions& options);
  void limit_steps_ahead(int most);
  void open_loader(std::unique_ptr<Dataset> set, const TrainOptions& options);
  void make_evaluator(const ExecutorOptions& training, const TrainOptions& options);
  void start_steps();
  bool must_validate() const;
  void validate();
  void require_finite_end();
  void end_by_rule(const ValidationReport& report);
  void start_step();
  void finish_steps();
  StepReport finish_step();
  void take_snapshot();
  void roll_back(const StepReport& report);
  void finish_start_up();
  void report_skipped();
  void end_not_finite(const StepReport& report);
  void scale_loss(StepReport& report);
  void end_at_least_scale(const StepReport& report);
  void finish_started();
  double rate_of(int64_t step) const;
  StepReport report_of(int64_t step) const;
  void end_of_epoch(const StepReport& report);

  const PlannedJob& job_;
  const Optimizer optimizer_;
  AverageByRate average_by_rate_;
  const Program& program_;
  const TrainObservers observers_;
  BatchExchange* const exchange_;  ///< null: there is none
  const std::function<bool(int64_t step)> may_start_;
  const std::function<std::vector<ValidationText>(int64_t steps, Executor&)> generate_texts_;
  StartUpClock start_up_;
  int64_t run_steps_ = 0;
  const int64_t first_step_;
  int64_t started_, finished_, reported_;  ///< all from 0 over the whole run
  bool stopped_ = false, ended_ = false;
  bool end_is_finite_ = false;  ///< require_finite_end has looked
  int64_t reported_skipped_ = 0;
  int max_ahead_ = 1;      ///< steps started but not finished
  bool is_finite_ = true;  ///< all losses so far
  Clock::time_point epoch_start_;
  Clock::time_point last_;           ///< when the last step finished, or when the first one started
  std::vector<StepReport> reports_;  ///< from the last read of losses: steps up to finished_
  int64_t validated_;                ///< the last validation was before this step, or the run started there
  BestValues best_;                  ///< best of the validations
  PlateauState plateau_;             ///< after the last validation
  LossScaleState loss_scale_;        ///< scale of the next step
  std::string stop_reason_;
  EpochMeans epoch_means_;
  std::unique_ptr<Executor> executor_;
  std::optional<StateSnapshot> snapshot_;  ///< state of the last checkpoint by steps (train.on_spike: then: rollback)
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<Executor> averages_;  ///< exchanges the weights with their average around a validation; null: none
  std::unique_ptr<Executor> synchronization_;  ///< updates the weights of all replicas; null: there is one replica
  int64_t synchronized_;                     ///< the last synchronization was before this step, or the run began there
  int64_t round_begin_ = 0, round_end_ = 0;  ///< parallel.local_steps: the current round of the replicas
  HostBlock no_inputs_;                      ///< inputs of averages_ and synchronization_
  std::unique_ptr<Loader> loader_;           ///< its blocks belong to the executor, and its thread ends first
};

/// Runs the steps of the job until its end, or until options.may_start refuses a step.
TrainResult train(const PlannedJob& job, const Program& program, Communicator& comm, TrainObservers observers = {},
                  const TrainOptions& options = {});

}  // namespace trainctl
