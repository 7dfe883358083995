// See the header.
#include "engine/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/base/error.h"
#include "engine/train/data/order.h"
#include "engine/train/learning_rate.h"

namespace trainctl {
namespace {

std::unique_ptr<Loader> make_loader(const PlannedJob& job, const Program& program) {
  const JobSpec& spec = job.spec;
  try {
    std::unique_ptr<Dataset> set = open_dataset(spec.dataset, spec.seed);
    const SampleOrder order(spec.dataset, set->size(), spec.seed);
    LoaderOptions options;
    options.num_steps = total_steps(spec.train, order.steps_per_epoch());
    options.micro_batches = job.plan.micro_batches;
    options.full_batch = spec.parallel.full_batch;
    return std::make_unique<Loader>(std::move(set), spec.dataset, program, spec.seed, options);
  } catch (const SpecError& error) {
    throw with_positions(error, spec);
  }
}

}  // namespace

int64_t total_steps(const TrainSpec& spec, int64_t steps_per_epoch) {
  const int64_t all = spec.epochs * steps_per_epoch;
  return spec.steps > 0 ? std::min(all, spec.steps) : all;
}

Trainer::Trainer(const PlannedJob& job, const Program& program, Communicator& comm, TrainHooks hooks,
                 const TrainOptions& options)
    : job_(job), program_(program), hooks_(std::move(hooks)), loader_(make_loader(job, program)) {
  run_steps_ = total_steps(job.spec.train, loader_->steps_per_epoch());
  ExecutorOptions executor_options;
  executor_options.seed = job.spec.seed;
  executor_options.threads = options.threads;
  executor_options.print = hooks_.print;
  executor_options.on_communication = hooks_.on_communication;
  executor_ = make_cpu_executor(program, comm, executor_options, options.arena);
}

StepReport Trainer::run_step() {
  const auto start = std::chrono::steady_clock::now();
  const int64_t epoch = step_ / steps_per_epoch();
  const StepScalars scalars = step_scalars(job_.spec.optimizer, step_, epoch, run_steps_);
  loader_->next_step();
  executor_->run_step(*loader_, scalars);

  StepReport report;
  report.epoch = epoch + 1;
  report.step = step_ % steps_per_epoch() + 1;
  report.steps_per_epoch = steps_per_epoch();
  report.run_step = ++step_;
  report.run_steps = run_steps_;
  report.has_loss = program_.loss_offset >= 0;
  report.loss = report.has_loss ? executor_->loss() : 0.0f;
  report.learning_rate = scalars.learning_rate;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  epoch_loss_.add(report.loss);
  if (hooks_.on_step) hooks_.on_step(report);
  if (report.step == report.steps_per_epoch || done()) end_of_epoch(report);
  return report;
}

void Trainer::end_of_epoch(const StepReport& report) {
  const EpochReport epoch{report.epoch, epoch_loss_.count(), report.has_loss, epoch_loss_.mean()};
  epoch_loss_ = {};
  if (hooks_.on_epoch) hooks_.on_epoch(epoch);
}

TrainResult train(const PlannedJob& job, const Program& program, Communicator& comm, const TrainHooks& hooks,
                  const TrainOptions& options) {
  TrainResult result;
  TrainHooks own = hooks;
  own.on_epoch = [&](const EpochReport& epoch) {
    result.last_epoch = epoch;
    if (hooks.on_epoch) hooks.on_epoch(epoch);
  };
  Trainer trainer(job, program, comm, own, options);
  while (!trainer.done()) {
    if (hooks.stop != nullptr && hooks.stop->load()) {
      result.stopped = true;
      break;
    }
    result.last_loss = trainer.run_step().loss;
    ++result.steps;
  }
  return result;
}

}  // namespace trainctl
