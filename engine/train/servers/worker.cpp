// Runs an asynchronous worker: claims batches, pulls weights, runs its program, and pushes gradients.
#include "engine/train/servers/worker.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/spec/error_positions.h"
#include "engine/train/data/order.h"
#include "engine/train/trainer/learning_rate.h"

namespace trainctl {
namespace {

/// Batches that a loader may have claimed ahead, out of BatchBoard::kMostClaims.
constexpr int kMostStepsAhead = 16;

DatasetSpec with_few_ahead(DatasetSpec spec) {
  spec.prefetch = std::clamp(spec.prefetch, 1, kMostStepsAhead);
  spec.autotune = false;  // batches that are read ahead are claimed, and others could run them
  return spec;
}

std::unique_ptr<Dataset> open_set(const JobSpec& spec) {
  try {
    return open_dataset(spec.dataset, spec.seed);
  } catch (const SpecError& error) {
    throw with_positions(error, spec);
  }
}

}  // namespace

AsyncWorker::AsyncWorker(const PlannedJob& job, const Program& program, const SharedMemory& memory, Communicator& comm,
                         const TrainObservers& observers, const TrainOptions& options)
    : job_(job),
      program_(program),
      memory_(memory),
      board_(memory.batches()),
      comm_(comm),
      optimizer_(job.spec.optimizer.type, job.spec.optimizer.attrs),
      observers_(observers.all()),
      may_start_(options.may_start),
      on_hang_(options.on_hang),
      start_up_(options.start_up),
      run_steps_(memory.batches().end()),
      steps_per_epoch_(steps_per_epoch(job.spec.dataset, job.data.samples)),
      client_(job, program, options.validation, options.arena, comm),
      validation_(options.validation),
      threads_(options.executor.threads),
      validated_(options.from.step),
      best_(options.from.validation.best),
      is_finite_(options.from.is_finite) {
  ExecutorOptions executor_options = options.executor;
  executor_options.seed = job.spec.seed;
  executor_options.start_up = &start_up_;
  std::unique_ptr<Dataset> set = open_set(job.spec);
  start_up_.ended("data");
  if (validation_ != nullptr) executor_options.least_arena_bytes = validation_->arena_bytes;
  executor_ = make_executor(job, program, comm, executor_options, options);
  if (validation_ != nullptr && program.rank == 0) make_evaluator();
  if (options.restore) options.restore(*executor_);
  if (board_.lives(program_.rank) > 0) join();
  make_loader(std::move(set));
}

void AsyncWorker::make_loader(std::unique_ptr<Dataset> set) {
  LoaderOptions loading;
  loading.num_steps = std::numeric_limits<int64_t>::max();  // next_batch() says when there are no more
  loading.claim = [this] { return next_batch(); };
  loading.micro_batches = job_.plan.micro_batches;
  loading.full_batch = job_.spec.parallel.full_batch;
  if (job_.spec.loss && job_.spec.loss->attrs.has("ignore_index"))
    loading.ignored_label = job_.spec.loss->attrs.integer("ignore_index");
  loading.timeout_seconds = job_.spec.launch.timeout_seconds;
  loading.on_hang = on_hang_;
  loading.layout = &executor_->inputs();
  loading.allocate = [this](int64_t bytes) { return executor_->allocate_inputs(bytes); };
  try {
    loader_ =
        std::make_unique<Loader>(std::move(set), with_few_ahead(job_.spec.dataset), program_, job_.spec.seed, loading);
  } catch (const SpecError& error) {
    throw with_positions(error, job_.spec);
  }
}

/// Claims the next batch for this worker, as LoaderOptions::claim.
int64_t AsyncWorker::next_batch() {
  if (!inherited_.empty()) {
    const int64_t batch = inherited_.back();
    inherited_.pop_back();
    return batch;
  }
  const int64_t batch = board_.claim(program_.rank);
  // Once the gate is closed, only batches that it had admitted are still run.
  const bool has_stopped = memory_.gate().asked_to_stop() &&
                           board_.first() + board_.finished() >= static_cast<int64_t>(memory_.gate().highest());
  return batch == BatchBoard::kNoneNow && has_stopped ? BatchBoard::kEnd : batch;
}

/// Takes the place of a worker process that has died, after every server has dropped the messages of that process.
void AsyncWorker::join() {
  const auto is_over = [this](int server) {
    return memory_.status(board_.workers() + server).state.load(std::memory_order_acquire) == RankState::done;
  };
  while (board_.dropped_by(program_.rank) < job_.plan.servers && !is_over(0))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int server = 0; server < job_.plan.servers; ++server) comm_.drop_messages(board_.workers() + server);
  board_.join(program_.rank, [this](int64_t batch) { inherited_.insert(inherited_.begin(), batch); });
}

TrainResult AsyncWorker::run() {
  last_end_ = epoch_start_ = Clock::now();
  while (run_batch()) {
  }
  if (last_.run_step > 0) end_epoch();
  result_.stopped = result_.stopped || board_.first() + board_.finished() < run_steps_;
  if (validates() && !result_.stopped) validate(run_steps_, run_steps_);
  client_.close();
  result_.last_step = board_.first() + board_.finished();
  if (result_.stopped && memory_.gate().asked_to_stop())  // others may still run the last batches
    result_.last_step = static_cast<int64_t>(memory_.gate().highest());
  if (result_.stopped) result_.reason = stop_reason_;
  result_.skipped = loader_->skipped();
  return result_;
}

/// Trains on the next batch. Returns false if there is none, or if the run is to stop.
bool AsyncWorker::run_batch() {
  const std::byte* inputs = loader_->next_step();
  if (inputs == nullptr) return false;
  const int64_t step = loader_->taken_step();
  if (may_start_ && !may_start_(step)) {
    result_.stopped = true;
    return false;
  }
  if (last_.run_step > 0 && step / steps_per_epoch_ + 1 > last_.epoch) end_epoch();
  if (const int64_t done = board_.first() + board_.finished(); validates() && validation_is_due(done))
    validate(done, 0);
  if (result_.steps == 0) start_up_.ended("data");
  StepScalars scalars =
      step_scalars(job_.spec.optimizer.learning_rate, optimizer_, step, step / steps_per_epoch_, run_steps_);
  scalars.label_weight = loader_->label_weight();
  const Clock::time_point start = Clock::now();
  // The block is this worker's until it is released.
  client_.start(step, const_cast<std::byte*>(inputs), loader_->look_ahead());
  executor_->start_step(inputs, scalars);
  std::array<float, kMostMetrics> sums{};
  StepReport report = report_of(step);
  report.loss = executor_->finish_step(std::span(sums).first(program_.metrics.size()));
  const auto weight = static_cast<double>(loader_->oldest_label_weight());
  for (size_t i = 0; i < program_.metrics.size(); ++i)
    report.metrics.values[i] =
        static_cast<double>(sums[i]) * program_.metrics[i].scale * (program_.metrics[i].of_labels ? weight : 1.0);
  report.loss = total_loss(report.loss, program_.metrics, sums);
  client_.finish(report);
  loader_->release_step();
  const Clock::time_point now = Clock::now();
  report.seconds = std::chrono::duration<double>(now - std::exchange(last_end_, now)).count();
  board_.finished(program_.rank, step, std::chrono::duration<double>(now - start).count());
  report_step(report);
  return true;
}

StepReport AsyncWorker::report_of(int64_t step) const {
  StepReport report;
  report.epoch = step / steps_per_epoch_ + 1;
  report.step = step % steps_per_epoch_ + 1;
  report.steps_per_epoch = steps_per_epoch_;
  report.run_step = step + 1;
  report.run_steps = run_steps_;
  report.own_step = result_.steps + 1;
  report.has_loss = program_.loss_offset >= 0;
  report.metrics.of = program_.metrics;
  report.learning_rate = learning_rate(job_.spec.optimizer.learning_rate, step, run_steps_);
  return report;
}

void AsyncWorker::report_step(StepReport report) {
  if (++result_.steps == 1) {
    start_up_.ended_together("step");
    start_up_.stop();
    for (TrainObserver* observer : observers_) observer->on_first_step(start_up_);
  }
  result_.last_loss = report.loss;
  last_ = report;
  epoch_means_.add(report);
  report.is_first_not_finite = is_finite_ && report.has_loss && !std::isfinite(report.loss);
  for (TrainObserver* observer : observers_) observer->on_step(report);
  if (!report.is_first_not_finite) return;
  is_finite_ = false;
  if (job_.spec.train.on_nan != OnNan::warn) throw LossNotFinite(report);
}

/// Reports the batches that this worker ran.
void AsyncWorker::end_epoch() {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - std::exchange(epoch_start_, now)).count();
  result_.last_epoch = {last_.epoch, epoch_means_.count(),  last_.run_step, last_.has_loss, epoch_means_.loss(),
                        seconds,     epoch_means_.metrics()};
  epoch_means_ = {};
  for (TrainObserver* observer : observers_) observer->on_epoch(result_.last_epoch);
}

/// Returns true for the first worker that has not died.
bool AsyncWorker::validates() const {
  if (validation_ == nullptr) return false;
  for (int worker = 0; worker < program_.rank; ++worker)
    if (!board_.is_gone(worker)) return false;
  return true;
}

void AsyncWorker::make_evaluator() {
  ExecutorOptions beside;
  beside.seed = job_.spec.seed;
  beside.threads = threads_;
  evaluator_ = std::make_unique<Evaluator>(job_, *job_.validation, *validation_, open_validation_set(job_),
                                           executor_->beside(*validation_, beside), on_hang_);
}

/// Returns true if a validation is due at a step after the last validation, up to `steps`.
bool AsyncWorker::validation_is_due(int64_t steps) const {
  for (int64_t step = validated_ + 1; step <= steps; ++step)
    if (job_.spec.validation->is_due(step, steps_per_epoch_)) return true;
  return false;
}

/// Ends the run if train.stop_when says so: workers finish the batches that have started, and start no others.
void AsyncWorker::end_by_rule(const ValidationReport& report) {
  if (!job_.spec.train.stop_when || !stop_reason_.empty()) return;
  stop_reason_ = stop_reason(*job_.spec.train.stop_when, report);
  if (stop_reason_.empty()) return;
  memory_.gate().ask_to_stop();
}

/// Validates weights that include the updates of all batches before `applied`, and perhaps later ones.
void AsyncWorker::validate(int64_t steps, int64_t applied) {
  if (validated_ >= steps) return;
  client_.wait_for_updates(applied);
  if (!evaluator_) make_evaluator();
  const auto before_batch = [&](std::byte* inputs) { client_.read(applied, inputs); };
  const auto progress = [this](int64_t done, int64_t all) {
    for (TrainObserver* observer : observers_) observer->on_validation_progress(done, all);
  };
  ValidationReport report = evaluator_->run(steps, progress, before_batch);
  validated_ = steps;
  report.epoch = (steps - 1) / steps_per_epoch_ + 1;
  report.epoch_step = steps - (report.epoch - 1) * steps_per_epoch_;
  report.is_whole_epoch = report.epoch_step == steps_per_epoch_;
  best_ = report.best = best_after(best_, report);
  end_by_rule(report);
  for (TrainObserver* observer : observers_) observer->on_validation(report);
}

}  // namespace trainctl
