// Reports of a run, step by step.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/best_value.h"
#include "engine/base/loss_scale_state.h"
#include "engine/base/plateau_state.h"
#include "engine/base/start_up.h"
#include "engine/compile/program.h"
#include "engine/graph/graph.h"

namespace trainctl {

/// The metrics of a step, or their means over an epoch, in the job's order.
struct MetricValues {
  std::span<const ReportedMetric> of;  ///< Program::metrics
  std::array<double, kMostMetrics> values{};
};

/// The loss of a step with its auxiliary losses; `sums` are those of the metrics in the arena.
float total_loss(float loss, std::span<const ReportedMetric> metrics, std::span<const float> sums);

/// "accuracy 0.9934, top_5 0.9991"; "" without metrics.
std::string to_string(const MetricValues& metrics);

/// Epochs and steps count from 1 here, as users see them; `step` counts within its epoch.
struct StepReport {
  int64_t epoch = 1;
  int64_t step = 1;
  int64_t steps_per_epoch = 1;
  int64_t run_step = 1;   ///< step, counted over the whole run
  int64_t run_steps = 1;  ///< number of steps of the whole run
  int64_t own_step = 0;   ///< asynchronous worker: number of this step among those that it ran itself; else 0
  bool has_loss = false;  ///< false if the job runs forward only
  float loss = 0;
  bool is_first_not_finite = false;  ///< the loss is nan or infinite, and no earlier one of the run was
  std::string sample = {};           ///< then: Loader::extreme_sample
  MetricValues metrics;
  double learning_rate = 0;
  bool has_overflowed = false;          ///< precision: fp16: the scaled gradients were not finite
  double loss_scale = 0;                ///< this step's; 0: the loss is not scaled
  LossScaleState next_loss_scale = {};  ///< after this step
  bool is_skipped = false;              ///< the step changed neither weights nor optimizer states
  /// Seconds of this step, loading included; steps between two reads of the losses share theirs evenly.
  double seconds = 0;
};

struct EpochReport {
  int64_t epoch = 1;
  int64_t steps = 0;     ///< steps that were run
  int64_t run_step = 0;  ///< the last of them, over the whole run
  bool has_loss = false;
  double mean_loss = 0;  ///< over the epoch's samples: all batches have the same number of them
  double seconds = 0;    ///< from the end of the last epoch, or the start of the first step, to the end of this one
  MetricValues metrics{};
};

/// A text that a validation has generated (validation.generate).
struct ValidationText {
  std::string prompt, text;
};

/// An evaluation of a whole data set.
struct ValidationReport {
  int64_t epoch = 1;
  int64_t epoch_step = 0;  ///< steps of that epoch that were run
  bool is_whole_epoch = false;
  int64_t run_step = 0;  ///< over the whole run
  int64_t samples = 0;
  std::vector<std::pair<std::string, double>> values;  ///< the loss, then the metrics, as validation.metrics says
  BestValues best;       ///< best of the run so far, this one and those before resumes included
  PlateauState plateau;  ///< after this validation, for a learning rate that falls on a plateau
  double seconds = 0;
  std::vector<ValidationText> texts;  ///< only on rank 0

  std::optional<double> value(const std::string& metric) const;
};

/// `best`, once `report` has followed.
BestValues best_after(const BestValues& best, const ValidationReport& report);

/// "validation epoch 3: loss 0.1204, accuracy 0.9670"; "validation epoch 3 step 20: …" inside an epoch.
std::string validation_line(const ValidationReport& report);
/// A line for each text: "validation text 1: Is 4 odd? -> No.", with escapes for control characters.
std::vector<std::string> text_lines(const ValidationReport& report);
/// "loss 0.1204, accuracy 0.9670".
std::string values_text(const ValidationReport& report);
/// {"kind":"validation","epoch":3,"run_step":132,"samples":1000,"loss":0.1204,"accuracy":0.967,"seconds":0.2}, and
/// with texts "texts":[{"prompt":"Is 4 odd?","text":"No."}].
std::string metrics_line(const ValidationReport& report);

/// "epoch: 1 step: 44, loss is 2.1034".
std::string loss_line(int64_t epoch, int64_t step, double loss);

/// "epoch: 1, mean loss is 2.1034".
std::string epoch_line(const EpochReport& report);

/// One line of metrics.jsonl: {"epoch":1,"step":44,"run_step":44,"loss":2.10342,…}. A loss that is nan or infinite is
/// null, followed by "not_finite": "nan", "inf" or "-inf".
std::string metrics_line(const StepReport& report);

/// The line that follows the steps of an epoch, with no field of theirs:
/// {"epoch_end":1,"last_step":44,"steps":44,"mean_loss":2.4,"epoch_seconds":1.25}
std::string metrics_line(const EpochReport& report);

/// "loss is nan since step 17 (epoch 2, step 5)".
std::string not_finite_line(const StepReport& report);

/// {"seconds": 3.1, "alone": 1.7, "phases": {"plan": 0.1, …}, "beside": {"NCCL world": 1.2}}: phases in order, which
/// add up to `seconds`; `alone` excludes those in which the rank waited for others.
nlohmann::ordered_json start_up_json(const StartUpClock& clock);

/// The sums over an epoch's steps so far. Plain data: checkpoints hold it.
struct EpochSums {
  double loss = 0;
  std::array<double, kMostMetrics> metrics{};
  int64_t count = 0;
};

/// The means of an epoch's losses and metrics, in double.
class EpochMeans {
 public:
  EpochMeans() = default;
  /// Continues from these sums; `of` as in MetricValues.
  EpochMeans(const EpochSums& sums, std::span<const ReportedMetric> of);
  void add(const StepReport& report);
  EpochSums sums() const { return {loss_, sums_.values, count_}; }
  int64_t count() const { return count_; }
  double loss() const { return mean(loss_); }
  MetricValues metrics() const;

 private:
  double mean(double sum) const { return count_ == 0 ? 0.0 : sum / static_cast<double>(count_); }

  double loss_ = 0;
  MetricValues sums_;
  int64_t count_ = 0;
};

}  // namespace trainctl
