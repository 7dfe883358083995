// Trains one rank's program: epochs, steps, learning rates, the data of each step.
#include "engine/train/trainer/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/plan/served.h"
#include "engine/runtime/device_worker.h"
#include "engine/spec/error_positions.h"
#include "engine/spec/replicas.h"
#include "engine/spec/schedule.h"
#include "engine/train/checkpoint/finite_state.h"
#include "engine/train/data/order.h"
#include "engine/train/trainer/learning_rate.h"
#include "engine/train/trainer/loss_scale.h"
#include "engine/train/trainer/outer_weights.h"
#include "engine/train/trainer/step_audit.h"

namespace trainctl {
namespace {

std::unique_ptr<Dataset> open_set(const JobSpec& spec, int shared_cache) {
  try {
    return open_dataset(spec.dataset, spec.seed, shared_cache);
  } catch (const SpecError& error) {
    throw with_positions(error, spec);
  }
}

std::vector<SampleTable> tables_to_keep(Dataset& set, const Program& program) {
  std::vector<SampleTable> tables = sample_tables(set, program);
  return small_enough_to_keep(tables) ? tables : std::vector<SampleTable>{};
}

/// The number of workers for data: all cores of the rank except the core of the thread that starts kernels.
int most_workers(int threads) { return std::max(threads - 1, 1); }

/// Makes the loader of the training's data. `options` has the settings that the job does not have.
std::unique_ptr<Loader> make_loader(const PlannedJob& job, const Program& program, std::unique_ptr<Dataset> set,
                                    Executor& executor, LoaderOptions options) {
  const JobSpec& spec = job.spec;
  try {
    options.num_steps = total_steps(spec.train, steps_per_epoch(spec.dataset, set->size()));
    options.micro_batches = job.plan.micro_batches;
    options.replica = program.replica;
    options.replicas = program.replicas;
    options.full_batch = spec.parallel.full_batch;
    if (spec.loss && spec.loss->attrs.has("ignore_index"))
      options.ignored_label = spec.loss->attrs.integer("ignore_index");
    options.timeout_seconds = spec.launch.timeout_seconds;
    options.layout = &executor.inputs();
    options.allocate = [&executor](int64_t bytes) { return executor.allocate_inputs(bytes); };
    return std::make_unique<Loader>(std::move(set), spec.dataset, program, spec.seed, options);
  } catch (const SpecError& error) {
    throw with_positions(error, spec);
  }
}

/// The variables of both programs must have the same offsets in the arena.
void require_same_places(const Program& program, const Program& other) {
  bool same = program.variables.size() == other.variables.size() && program.buckets.size() == other.buckets.size();
  for (size_t v = 0; same && v < program.variables.size(); ++v)
    same = program.variables[v].arena_offset == other.variables[v].arena_offset &&
           program.variables[v].bucket_element == other.variables[v].bucket_element;
  for (size_t b = 0; same && b < program.buckets.size(); ++b)
    same = program.buckets[b].weights_offset == other.buckets[b].weights_offset &&
           program.buckets[b].compute_offset == other.buckets[b].compute_offset;
  check(same, "the validation must read the variables at the offsets of the training");
}

/// True if the step reports that metric, and it is not 0.
bool is_counted(const StepReport& report, std::string_view metric) {
  for (size_t i = 0; i < report.metrics.of.size(); ++i)
    if (report.metrics.of[i].name == metric) return report.metrics.values[i] != 0;
  return false;
}

void run_beside(Executor& executor, const HostBlock& inputs, int64_t step, float average_rate = 1) {
  StepScalars scalars;
  scalars.average_rate = average_rate;
  scalars.step = static_cast<uint32_t>(step);
  executor.start_step(inputs.get(), scalars);
  executor.finish_step();
}

}  // namespace

LossNotFinite::LossNotFinite(const StepReport& report)
    : std::runtime_error(not_finite_line(report) +
                         "; reduce optimizer.learning_rate, set optimizer.clip_norm, check the data, or set "
                         "train.on_nan: warn or skip to continue"),
      run_step_(report.run_step) {}

std::unique_ptr<Executor> make_executor(const PlannedJob& job, const Program& program, Communicator& comm,
                                        const ExecutorOptions& executor_options, const TrainOptions& options) {
  if (!options.cuda && !options.device) return make_cpu_executor(program, comm, executor_options, options.arena);
  const auto on_gpu = [&options](const Program& p, Communicator& ranks, const ExecutorOptions& of_device) {
    return options.cuda ? make_cuda_executor(p, ranks, of_device, *options.cuda) : options.device(p, ranks, of_device);
  };
  if (job.plan.servers == 0) return on_gpu(program, comm, executor_options);
  return servers::make_device_worker(program, num_workers(job.plan), comm, executor_options, options.arena, on_gpu);
}

Trainer::Trainer(const PlannedJob& job, const Program& program, Communicator& comm, TrainObservers observers,
                 const TrainOptions& options)
    : job_(job),
      optimizer_(job.spec.optimizer.type, job.spec.optimizer.attrs),
      program_(program),
      observers_(std::move(observers)),
      exchange_(options.exchange),
      may_start_(options.may_start),
      generate_texts_(options.generate_texts),
      start_up_(options.start_up),
      first_step_(options.from.step),
      started_(first_step_),
      finished_(first_step_),
      reported_(first_step_),
      is_finite_(options.from.is_finite),
      validated_(first_step_),
      best_(options.from.validation.best),
      plateau_(options.from.validation.plateau),
      loss_scale_(options.from.loss_scale),
      epoch_means_(options.from.epoch, program.metrics),
      synchronized_(first_step_) {
  ExecutorOptions executor_options = options.executor;
  executor_options.seed = job.spec.seed;
  executor_options.in_flight = steps_in_flight(job.spec.train);
  executor_options.start_up = &start_up_;
  std::unique_ptr<Dataset> set = open_set(job.spec, options.shared_cache);
  start_up_.ended("data");
  open_executors(comm, *set, executor_options, options);
  if (options.restore) {
    options.restore(*executor_);
    start_up_.ended("checkpoint");
  }
  if (synchronization_ && first_step_ == 0) begin_outer_weights(program, *executor_);
  while (synchronization_ && round_end_ <= first_step_) {
    round_begin_ = round_end_;
    round_end_ = end_of_round(job.spec.parallel, round_begin_);
  }
  limit_steps_ahead(executor_options.in_flight);
  open_loader(std::move(set), options);
  run_steps_ = total_steps(job.spec.train, loader_->steps_per_epoch());
  reports_.reserve(static_cast<size_t>(std::min({job.spec.train.sink_steps, steps_per_epoch(), run_steps_})));
  end_by_rule(options.from.validation);
}

/// Makes the executor that trains, and those that run beside it in its arena. Adds to `training`, the options of the
/// first, what the others and the data set need.
void Trainer::open_executors(Communicator& comm, Dataset& set, ExecutorOptions& training, const TrainOptions& options) {
  for (const Program* beside : {options.validation, options.synchronization})
    if (beside != nullptr) training.least_arena_bytes = std::max(training.least_arena_bytes, beside->arena_bytes);
  // Tables are excluded because the host replaces the ids that choose their rows.
  if (options.cuda && !job_.data.is_random && job_.tables.empty()) training.tables = tables_to_keep(set, program_);
  if (options.cuda) training.byte_tables = byte_tables(set, program_);
  executor_ = make_executor(job_, program_, comm, training, options);
  if (options.audit != nullptr) executor_ = options.audit->around(std::move(executor_), training);
  if (options.validation != nullptr) make_evaluator(training, options);
  if (options.averages != nullptr) averages_ = make_beside(training, *options.averages);
  if (options.synchronization != nullptr) synchronization_ = make_beside(training, *options.synchronization);
}

/// Sets how many steps may be in flight, at most `most`, and the state of what makes steps wait for each other.
void Trainer::limit_steps_ahead(int most) {
  max_ahead_ = std::min(executor_->max_in_flight(), most);
  if (!job_.plan.numerics.optimizer.scales_loss || !job_.graph.trains()) {
    loss_scale_ = {};
  } else {
    if (loss_scale_.scale == 0) loss_scale_ = first_loss_scale(job_.spec.fp16.value_or(Fp16Spec{}));
    max_ahead_ = 1;  // the scale of a step depends on the gradients of the step before it
  }
  if (const auto& spike = job_.spec.train.on_spike; spike && spike->then == "rollback" && job_.graph.trains()) {
    snapshot_.emplace(program_);
    max_ahead_ = 1;  // the step after a spike starts from another state
  }
}

void Trainer::open_loader(std::unique_ptr<Dataset> set, const TrainOptions& options) {
  LoaderOptions loading;
  loading.first_step = first_step_;
  loading.batches_in_use = max_ahead_;
  loading.most_workers = most_workers(options.executor.threads);
  loading.on_hang = options.on_hang;
  loading.on_change = [this](int64_t step, const LoadTuner::Change& change) {
    for (TrainObserver* observer : observers_.all()) observer->on_loading(step, change.to, change.reason);
  };
  loader_ = make_loader(job_, program_, std::move(set), *executor_, std::move(loading));
}

/// `training`: the options of the executor that trains, in whose arena the validation runs.
void Trainer::make_evaluator(const ExecutorOptions& training, const TrainOptions& options) {
  check(job_.validation.has_value(), "a validation program requires a job with a validation");
  require_same_places(program_, *options.validation);
  std::unique_ptr<Dataset> set = open_validation_set(job_);
  ExecutorOptions beside;
  beside.seed = training.seed;
  beside.threads = training.threads;
  beside.in_flight = 1;
  beside.on_prepared = training.on_prepared;
  beside.least_arena_bytes = training.least_arena_bytes;
  if (options.cuda) beside.byte_tables = byte_tables(*set, *options.validation);
  evaluator_ = std::make_unique<Evaluator>(job_, *job_.validation, *options.validation, std::move(set),
                                           executor_->beside(*options.validation, beside), options.on_hang);
  start_up_.ended("kernels");
}

/// Makes an executor for a program that loads no samples and runs in the arena of the training. `training` has the
/// options of the training's executor.
std::unique_ptr<Executor> Trainer::make_beside(const ExecutorOptions& training, const Program& program) {
  require_same_places(program_, program);
  for (size_t b = 0; b < program.buckets.size(); ++b)
    check(program.buckets[b].average_offset == program_.buckets[b].average_offset &&
              program.buckets[b].outer_momentum_offset == program_.buckets[b].outer_momentum_offset,
          "the program must find the averages at the offsets of the training");
  ExecutorOptions beside;
  beside.seed = training.seed;
  beside.threads = training.threads;
  beside.in_flight = 1;
  beside.on_prepared = training.on_prepared;
  beside.on_communication = training.on_communication;
  beside.least_arena_bytes = training.least_arena_bytes;
  std::unique_ptr<Executor> executor = executor_->beside(program, beside);
  no_inputs_ = executor->allocate_inputs(executor->inputs().bytes);
  return executor;
}

/// Exchanges the weights with their average. All started steps of the training must have finished.
void Trainer::exchange_averages() {
  if (!averages_ || started_ == 0) return;  // there is no average before the first update
  run_beside(*averages_, no_inputs_, started_);
}

/// Returns whether the replicas must be synchronized now: after every round of local steps, and at the end of the run.
bool Trainer::must_synchronize() const {
  if (!synchronization_ || synchronized_ == started_) return false;
  return started_ == run_steps_ || started_ == round_end_;
}

/// Synchronizes the replicas. All started steps of the training must have finished. While the rounds grow, the weights
/// become the mean over the replicas (rate 1), because the momentum of the outer optimizer would need many steps to
/// decay.
void Trainer::synchronize() {
  const ParallelSpec& parallel = job_.spec.parallel;
  const bool is_short = parallel.outer.round_growth > 0 && started_ - round_begin_ < parallel.local_steps;
  for (StateObserver* observer : observers_.of_state()) observer->before_synchronization(*executor_);
  run_beside(*synchronization_, no_inputs_, started_, is_short ? 1.0f : 0.0f);
  synchronized_ = started_;
  if (started_ != round_end_) return;
  round_begin_ = started_;
  round_end_ = end_of_round(parallel, started_);
}

void Trainer::start_steps() {
  while (!stopped_ && started_ < run_steps_ && started_ - finished_ < max_ahead_) {
    if (must_synchronize()) {
      if (finished_ < started_) return;
      synchronize();
    }
    if (must_validate()) {
      if (reported_ < started_) return;
      validate();
      continue;
    }
    if (may_start_ && !may_start_(started_)) {
      stopped_ = true;
      break;
    }
    if (started_ == finished_) last_ = Clock::now();
    if (snapshot_) take_snapshot();
    for (StateObserver* observer : observers_.of_state()) observer->before_step(started_, *executor_);
    start_step();
  }
  if ((!stopped_ && started_ < run_steps_) || started_ > finished_) return;
  if (must_synchronize()) synchronize();
  // The observers first receive the reports of the steps before the validation.
  if (must_validate() && reported_ == started_) validate();
}

/// Returns whether a validation is due before the next step starts, or at the end.
bool Trainer::must_validate() const {
  if (!evaluator_ || validated_ == started_) return false;
  return started_ == run_steps_ || job_.spec.validation->is_due(started_, steps_per_epoch());
}

void Trainer::validate() {
  const Clock::time_point start = Clock::now();
  const bool is_end = started_ == run_steps_;
  if (is_end) require_finite_end();
  for (StateObserver* observer : observers_.of_state()) observer->before_validation(started_, is_end, *executor_);
  const auto progress = [this](int64_t done, int64_t all) {
    for (TrainObserver* observer : observers_.all()) observer->on_validation_progress(done, all);
  };
  std::function<void(std::byte*)> before_batch;
  if (exchange_ != nullptr)
    before_batch = [this](std::byte* inputs) { exchange_->before_validation_batch(started_, inputs); };
  exchange_averages();
  std::vector<ValidationText> texts;
  if (generate_texts_) {
    progress(0, evaluator_->batches());
    texts = generate_texts_(started_, *executor_);
  }
  ValidationReport report = evaluator_->run(started_, progress, before_batch);
  exchange_averages();
  report.texts = std::move(texts);
  validated_ = started_;
  report.epoch = (started_ - 1) / steps_per_epoch() + 1;
  report.epoch_step = started_ - (report.epoch - 1) * steps_per_epoch();
  report.is_whole_epoch = report.epoch_step == steps_per_epoch();
  best_ = report.best = best_after(best_, report);
  // The validation at the end of a run is not one of those that a longer run would make.
  if (const ScheduleSpec& rate = job_.spec.optimizer.learning_rate;
      rate.is_plateau() && job_.spec.validation->is_due(started_, steps_per_epoch()))
    plateau_ = plateau_after(rate, plateau_, *report.value(rate.metric));
  report.plateau = plateau_;
  end_by_rule(report);
  for (TrainObserver* observer : observers_.all()) observer->on_validation(report);
  epoch_start_ += Clock::now() - start;
}

/// Requires a finite state at the end of the run, since no later loss would show what the last update did.
void Trainer::require_finite_end() {
  const bool has_trained = !job_.graph.updates.empty() && finished_ > first_step_;
  if (std::exchange(end_is_finite_, true) || !has_trained || job_.spec.train.on_nan == OnNan::warn) return;
  require_finite_state(program_, *executor_, finished_);
}

/// Ends the run if train.stop_when says so. All ranks have the same numbers, and therefore stop here together.
void Trainer::end_by_rule(const ValidationReport& report) {
  if (job_.spec.train.stop_when) stop_reason_ = trainctl::stop_reason(*job_.spec.train.stop_when, report);
  if (!stop_reason_.empty()) stopped_ = true;
}

void Trainer::start_step() {
  if (started_ == first_step_) epoch_start_ = last_;
  const int64_t epoch = started_ / steps_per_epoch();
  const int64_t updates = started_ - loss_scale_.skipped;  // The number of updates before this step.
  StepScalars scalars =
      step_scalars(job_.spec.optimizer.learning_rate, optimizer_, started_, epoch, run_steps_, loss_scale_.skipped);
  if (loss_scale_.scale > 0) scalars.loss_scale = static_cast<float>(loss_scale_.scale);
  scalars.learning_rate = static_cast<float>(rate_of(started_));
  const std::byte* batch = loader_->next_step();
  if (const auto& average = job_.spec.optimizer.average; average)
    scalars.average_rate = average_rate(average, started_ + 1);
  if (optimizer_.def.averages_by_rate)
    scalars.average_rate = average_by_rate_.at(job_.spec.optimizer.learning_rate, updates, run_steps_);
  scalars.label_weight = loader_->label_weight();
  if (started_ == first_step_) start_up_.ended("data");
  if (exchange_ != nullptr)  // the block is this rank's until it is released
    exchange_->before_batch(started_, const_cast<std::byte*>(batch), loader_->look_ahead());
  executor_->start_step(batch, scalars);
  ++started_;
}

/// The learning rate of a step. A validation starts only when all steps before it are reported, so the plateau state is
/// the one that belongs to this step.
double Trainer::rate_of(int64_t step) const {
  return local_rate_of(job_.spec) * plateau_.scale * learning_rate(job_.spec.optimizer.learning_rate, step, run_steps_);
}

StepReport Trainer::report_of(int64_t step) const {
  StepReport report;
  report.epoch = step / steps_per_epoch() + 1;
  report.step = step % steps_per_epoch() + 1;
  report.steps_per_epoch = steps_per_epoch();
  report.run_step = step + 1;
  report.run_steps = run_steps_;
  report.has_loss = program_.loss_offset >= 0;
  report.learning_rate = static_cast<float>(rate_of(step));
  return report;
}

void Trainer::finish_start_up() {
  start_up_.ended_together("step");
  start_up_.stop();
  for (TrainObserver* observer : observers_.all()) observer->on_first_step(start_up_);
}

/// Reports broken samples: the first one, and then each time that their number has doubled, so that many of them do not
/// flood the output.
void Trainer::report_skipped() {
  const SkippedSamples skipped = loader_->skipped();
  if (skipped.count == 0 || skipped.count < 2 * reported_skipped_) return;
  reported_skipped_ = skipped.count;
  for (TrainObserver* observer : observers_.all()) observer->on_skipped(finished_, skipped);
}

/// Takes a snapshot of the state before the first step, and at each step at which a checkpoint by steps is due.
void Trainer::take_snapshot() {
  if (started_ == first_step_ || started_ % job_.spec.train.saving().every_steps == 0)
    snapshot_->take(started_, *executor_);
}

/// Returns to the snapshot after a spike. All ranks have the same norm of the gradients, so they return together. An
/// overflow of scaled gradients is not a spike.
void Trainer::roll_back(const StepReport& report) {
  if (!report.is_skipped || is_counted(report, kOverflowedMetric)) return;
  snapshot_->put_back(*executor_);
  for (TrainObserver* observer : observers_.all()) observer->on_rollback(report.run_step, snapshot_->step());
}

/// Updates the loss scale after a step. All ranks have the same norm of the gradients, and therefore the same scale.
void Trainer::scale_loss(StepReport& report) {
  report.has_overflowed = job_.spec.train.on_spike ? is_counted(report, kOverflowedMetric) : report.is_skipped;
  report.loss_scale = loss_scale_.scale;
  loss_scale_ = loss_scale_after(job_.spec.fp16.value_or(Fp16Spec{}), loss_scale_, report.has_overflowed);
  report.next_loss_scale = loss_scale_;
}

StepReport Trainer::finish_step() {
  StepReport report = report_of(finished_);
  std::array<float, kMostMetrics> sums{};
  report.loss = executor_->finish_step(std::span(sums).first(program_.metrics.size()));
  report.metrics.of = program_.metrics;
  const auto weight = static_cast<double>(loader_->oldest_label_weight());
  for (size_t i = 0; i < program_.metrics.size(); ++i)
    report.metrics.values[i] =
        static_cast<double>(sums[i]) * program_.metrics[i].scale * (program_.metrics[i].of_labels ? weight : 1.0);
  report.loss = total_loss(report.loss, program_.metrics, sums);
  report.is_skipped = is_counted(report, kSkippedMetric);
  if (loss_scale_.scale > 0) scale_loss(report);
  if (exchange_ != nullptr) exchange_->after_batch(report);
  if (finished_ == first_step_) finish_start_up();
  if (snapshot_) roll_back(report);
  if (is_finite_ && report.has_loss && !std::isfinite(report.loss)) report.sample = loader_->extreme_sample();
  loader_->release_step();
  ++finished_;
  report_skipped();
  const Clock::time_point now = Clock::now();
  report.seconds = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  return report;
}

/// Finishes steps until the losses are next read. A device may finish several steps as one, so they share the time.
void Trainer::finish_steps() {
  reports_.clear();
  const auto sink_steps = static_cast<size_t>(job_.spec.train.sink_steps);
  double seconds = 0;
  for (start_steps(); finished_ < started_; start_steps()) {
    reports_.push_back(finish_step());
    seconds += reports_.back().seconds;
    if (reports_.size() == sink_steps || reports_.back().step == steps_per_epoch()) break;
  }
  for (StepReport& report : reports_) report.seconds = seconds / static_cast<double>(reports_.size());
}

std::optional<StepReport> Trainer::run_step() {
  if (reported_ == finished_) finish_steps();
  if (reported_ == finished_) {
    if (std::exchange(ended_, true)) return std::nullopt;
    require_finite_end();
    for (StateObserver* observer : observers_.of_state()) observer->at_end(started_, *executor_);
    return std::nullopt;
  }
  StepReport report = reports_[reports_.size() - static_cast<size_t>(finished_ - reported_)];
  ++reported_;
  epoch_means_.add(report);
  report.is_first_not_finite = is_finite_ && report.has_loss && !std::isfinite(report.loss);
  for (TrainObserver* observer : observers_.all()) observer->on_step(report);
  if (report.is_first_not_finite) end_not_finite(report);
  end_at_least_scale(report);
  if (report.step == report.steps_per_epoch || done()) end_of_epoch(report);
  const TrainPosition position{reported_, epoch_means_.sums(), is_finite_, {}, report.next_loss_scale};
  for (StateObserver* observer : observers_.of_state()) observer->on_position(position);
  return report;
}

/// Ends the run if train.on_nan is stop. The loss is the same on all ranks, which therefore end together: none
/// waits for a step that another does not run.
void Trainer::end_not_finite(const StepReport& report) {
  is_finite_ = false;
  if (job_.spec.train.on_nan != OnNan::stop) return;
  finish_started();
  throw LossNotFinite(report);
}

void Trainer::finish_started() {
  for (; finished_ < started_; ++finished_) {
    executor_->finish_step();
    loader_->release_step();
  }
}

/// Ends the run after an overflow if the scale cannot fall and train.on_nan is stop: no later step would differ.
void Trainer::end_at_least_scale(const StepReport& report) {
  const bool may_fall = report.next_loss_scale.scale < report.loss_scale;
  if (!report.has_overflowed || may_fall || job_.spec.train.on_nan != OnNan::stop) return;
  finish_started();
  throw LossNotFinite(
      fmt::format("gradients are not finite in step {} although the loss scale is {}, the least; set precision: bf16, "
                  "reduce optimizer.learning_rate, check the data, or set fp16.min_scale, or train.on_nan: warn",
                  report.run_step, report.loss_scale),
      report.run_step);
}

void Trainer::end_of_epoch(const StepReport& report) {
  // An epoch ends where the losses are read, so no later step is finished yet.
  const std::chrono::duration<double> seconds = last_ - epoch_start_;
  epoch_start_ = last_;
  const EpochReport epoch{report.epoch,        epoch_means_.count(), report.run_step,       report.has_loss,
                          epoch_means_.loss(), seconds.count(),      epoch_means_.metrics()};
  if (report.step == report.steps_per_epoch) epoch_means_ = {};  // else a resumed run may continue with it
  for (TrainObserver* observer : observers_.all()) observer->on_epoch(epoch);
}

TrainResult train(const PlannedJob& job, const Program& program, Communicator& comm, TrainObservers observers,
                  const TrainOptions& options) {
  struct LastEpoch : TrainObserver {
    void on_epoch(const EpochReport& report) override { epoch = report; }
    EpochReport epoch;
  } last;
  observers.add(last);
  TrainResult result;
  Trainer trainer(job, program, comm, std::move(observers), options);
  while (const std::optional<StepReport> report = trainer.run_step()) {
    result.last_loss = report->loss;
    ++result.steps;
  }
  result.last_epoch = last.epoch;
  result.last_step = options.from.step + result.steps;
  result.stopped = !trainer.done();
  result.reason = trainer.stop_reason();
  result.loading = trainer.loading();
  result.waits = trainer.waits();
  result.skipped = trainer.skipped();
  return result;
}

}  // namespace trainctl
