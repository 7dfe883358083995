// Runs one rank's evaluation program over a whole data set: each sample counts once, in loss and metrics. The last
// batch is filled up with rows that have no label.
#pragma once

#include <functional>
#include <memory>

#include "engine/planning/planned_job.h"
#include "engine/runtime/executor.h"
#include "engine/train/data/loader.h"
#include "engine/train/files/metrics.h"

namespace trainctl {

/// The set of the job's validation. Throws SpecError with its position in the job.
std::unique_ptr<Dataset> open_validation_set(const PlannedJob& job);

class Evaluator {
 public:
  /// All arguments must outlive the evaluator; the job has a validation. `executor` runs `program`. The evaluator owns
  /// the executor and the set. For `on_hang` see TrainOptions.
  Evaluator(const PlannedJob& job, const PlannedEvaluation& evaluation, const Program& program,
            std::unique_ptr<Dataset> set, std::unique_ptr<Executor> executor,
            const std::function<void(const EnvError&)>& on_hang = {});

  int64_t batches() const { return loader_->steps_per_epoch(); }
  Executor& executor() { return *executor_; }

  /// Evaluates the whole set with the weights in the arena, which are those after `steps` steps. No step of the
  /// training may be unfinished. Returns the loss and all metrics of the job, also those that validation.metrics leaves
  /// out, with the same values on all ranks. `progress` is called after each batch; `before_batch` before it, with its
  /// inputs. Throws the errors of Trainer::run_step.
  ValidationReport run(int64_t steps, const std::function<void(int64_t done, int64_t all)>& progress = {},
                       const std::function<void(std::byte* inputs)>& before_batch = {});

 private:
  const PlannedJob& job_;
  const Program& program_;
  const int64_t batch_;  ///< samples of a whole batch
  const int64_t rows_;   ///< labels of a whole batch
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Loader> loader_;
};

/// The reason for which train.stop_when ends the run after this validation; empty if the run continues.
std::string stop_reason(const StopSpec& spec, const ValidationReport& report);

}  // namespace trainctl
