// Runs one rank's evaluation program over a whole data set: each sample counts once, in loss and metrics.
#include "engine/train/trainer/evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/base/error.h"
#include "engine/model/evaluation.h"
#include "engine/spec/error_positions.h"

namespace trainctl {
namespace {

/// Returns the number of labels of one sample; 1 if the loss has none.
int64_t labels_of(const DataShapes& shapes) {
  const DataField* label = shapes.find("label");
  return label == nullptr ? 1 : num_elements(label->shape);
}

std::unique_ptr<Loader> make_loader(const PlannedJob& job, const PlannedEvaluation& evaluation, const Program& program,
                                    std::unique_ptr<Dataset> set, Executor& executor,
                                    const std::function<void(const EnvError&)>& on_hang) {
  const JobSpec& spec = job.spec;
  LoaderOptions options;
  options.num_steps = std::numeric_limits<int64_t>::max();  // one pass after another
  options.micro_batches = job.plan.micro_batches;
  options.full_batch = spec.parallel.full_batch;
  if (spec.loss->attrs.has("ignore_index")) options.ignored_label = spec.loss->attrs.integer("ignore_index");
  options.no_label = no_label(evaluation.graph);
  for (const LossSpec& loss : spec.auxiliary_losses) options.labels.push_back(loss.label);
  options.batches_in_use = 1;
  options.timeout_seconds = spec.launch.timeout_seconds;
  options.on_hang = on_hang;
  options.layout = &executor.inputs();
  options.allocate = [&executor](int64_t bytes) { return executor.allocate_inputs(bytes); };
  try {
    return std::make_unique<Loader>(std::move(set), evaluation.set, program, spec.seed, options);
  } catch (const SpecError& error) {
    throw with_positions(error, spec);
  }
}

}  // namespace

std::unique_ptr<Dataset> open_validation_set(const PlannedJob& job) {
  try {
    return open_dataset(job.validation->set, job.spec.seed);
  } catch (const SpecError& error) {
    throw with_positions(error, job.spec);
  }
}

Evaluator::Evaluator(const PlannedJob& job, const PlannedEvaluation& evaluation, const Program& program,
                     std::unique_ptr<Dataset> set, std::unique_ptr<Executor> executor,
                     const std::function<void(const EnvError&)>& on_hang)
    : job_(job),
      program_(program),
      batch_(evaluation.set.batch),
      rows_(batch_ * labels_of(job.data.shapes)),
      executor_(std::move(executor)),
      loader_(make_loader(job, evaluation, program, std::move(set), *executor_, on_hang)) {}

ValidationReport Evaluator::run(int64_t steps, const std::function<void(int64_t, int64_t)>& progress,
                                const std::function<void(std::byte*)>& before_batch) {
  const auto start = std::chrono::steady_clock::now();
  StepScalars scalars;
  scalars.step = static_cast<uint32_t>(std::max<int64_t>(steps, 1) - 1);
  std::array<float, kMostMetrics> sums{};
  double loss = 0;                             // a batch's loss is its sum divided by all rows of a batch
  std::array<double, kMostMetrics> metrics{};  // sums of whole numbers
  int64_t labels = 0;
  ValidationReport report;
  report.run_step = steps;
  if (progress) progress(0, batches());
  for (int64_t batch = 0; batch < batches(); ++batch) {
    const std::byte* inputs = loader_->next_step();
    if (before_batch) before_batch(const_cast<std::byte*>(inputs));  // the block is this loader's
    executor_->start_step(inputs, scalars);
    loss += static_cast<double>(executor_->finish_step(std::span(sums).first(program_.metrics.size())));
    for (size_t i = 0; i < program_.metrics.size(); ++i) metrics[i] += static_cast<double>(sums[i]);
    labels += loader_->oldest_labels();
    report.samples += loader_->oldest_samples();
    loader_->release_step();
    if (progress) progress(batch + 1, batches());
  }
  const auto mean = [&](double sum, double scale) {
    return labels == 0 ? 0.0 : sum * (scale * static_cast<double>(rows_)) / static_cast<double>(labels);
  };
  // A mean over samples: only the labels of the loss itself may be ignored.
  const auto batch = static_cast<double>(batch_);
  double total = mean(loss, 1);
  for (size_t i = 0; i < program_.metrics.size(); ++i) {
    if (!program_.metrics[i].adds_to_loss) continue;
    metrics[i] *= report.samples == 0 ? 0.0 : batch / static_cast<double>(report.samples);
    total += metrics[i];
  }
  const ValidationSpec& validation = *job_.spec.validation;
  if (program_.loss_offset >= 0 && validation.reports("loss")) report.values.emplace_back("loss", total);
  for (size_t i = 0; i < program_.metrics.size(); ++i) {
    const ReportedMetric& metric = program_.metrics[i];
    if (validation.reports(metric.name))
      report.values.emplace_back(metric.name,
                                 metric.adds_to_loss ? metrics[i] * metric.scale : mean(metrics[i], metric.scale));
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

std::string stop_reason(const StopSpec& spec, const ValidationReport& report) {
  const std::optional<double> value = report.value(spec.metric);
  if (!value) return "";  // a checkpoint of a job with other metrics
  if (spec.reaches && !is_better(spec.metric, *spec.reaches, *value) && !std::isnan(*value))
    return fmt::format("the validation {} of {:.4g} has reached train.stop_when.reaches, which is {:.4g}", spec.metric,
                       *value, *spec.reaches);
  const auto best =
      std::find_if(report.best.begin(), report.best.end(), [&](const auto& b) { return b.first == spec.metric; });
  if (spec.patience == 0 || best == report.best.end() || best->second.since < spec.patience) return "";
  return fmt::format("the validation {} has not improved on {:.4g} since step {} (train.stop_when.patience: {})",
                     spec.metric, best->second.value, best->second.step, spec.patience);
}

}  // namespace trainctl
