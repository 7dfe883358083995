// A rank's side of saves: agrees with the other ranks on steps, and copies its state into memory that outlives the
// rank.
#include "cli/run/saves/saver.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/text.h"
#include "engine/planning/compile_job.h"
#include "engine/train/checkpoint/save_policy.h"
#include "engine/train/data/order.h"

namespace trainctl {
namespace {

[[noreturn]] void throw_errno(const char* what, int64_t bytes) {
  throw EnvError(std::string("cannot ") + what + " " + format_bytes(bytes) +
                 " for checkpoints: " + describe_errno(errno) + "; use more ranks, or set train.checkpoint: none");
}

/// Time limit at the end of a run for a disk that makes no progress with the previous save.
constexpr std::chrono::seconds kPreviousSavePatience{60};

}  // namespace

SaveBoard::Position board_position(const TrainPosition& position, const ValidationReport& validation) {
  SaveBoard::Position result;
  result.loss_sum = position.epoch.loss;
  result.metric_sums = position.epoch.metrics;
  result.steps = position.epoch.count;
  result.is_finite = position.is_finite;
  result.is_validated = !validation.values.empty() && validation.run_step == position.step;
  for (size_t i = 0; result.is_validated && i < validation.values.size(); ++i)
    result.validation[i] = validation.values[i].second;
  for (size_t i = 0; i < validation.best.size(); ++i) result.best[i] = validation.best[i].second;
  result.plateau = validation.plateau;
  result.loss_scale = position.loss_scale;
  return result;
}

ImageMemory::ImageMemory(int fd, int64_t bytes, bool is_populated) : fd_(fd) {
  if (bytes == 0) return;
  const auto size = static_cast<size_t>(bytes);
  if (ftruncate(fd, bytes) != 0) throw_errno("allocate", bytes);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) throw_errno("map", bytes);
  bytes_ = {static_cast<std::byte*>(memory), size};
  if (!is_populated) return;
  populate_ = std::thread([memory, size] {
#ifdef MADV_POPULATE_WRITE
    madvise(memory, size, MADV_POPULATE_WRITE);  // older systems allocate the pages at the first save
#endif
  });
}

ImageMemory::~ImageMemory() {
  if (populate_.joinable()) populate_.join();
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
  if (fd_ >= 0) close(fd_);
}

Saver::Saver(const PlannedJob& job, const Program& program, RankBoard& memory, int image_fd, const TrainPosition& from,
             int failures)
    : job_(job),
      program_(program),
      shared_(memory),
      status_(memory.status(program.rank)),
      reports_(job.plan.is_asynchronous() ? program.server == 0 : program.rank == 0),
      board_(memory.saves()),
      spec_(job.spec.train.saving()),
      saves_state_(job.spec.train.saves_state()),
      image_(program, saves_state_ ? StateShare::own : StateShare::weights),
      image_fd_(image_fd),
      first_step_(from.step),
      steps_per_epoch_(steps_per_epoch(job.spec.dataset, job.data.samples)),
      failures_(failures),
      position_(from),
      validation_(from.validation) {
  if (saves_state_) take_memory();
}

void Saver::take_memory() {
  memory_.emplace(image_fd_, image_.bytes(), saves_state_);
  std::memcpy(memory_->bytes().data(), image_.head().data(), image_.head().size());
}

void Saver::prepare(Executor& executor) {
  if (is_prepared_) return;
  if (!memory_) take_memory();
  executor.prepare_copy(image_.copies(), memory_->bytes().data());
  is_prepared_ = true;
}

bool Saver::saves_before(int64_t step) {
  return saves_state_ && step != first_step_ &&
         board_.saves_before(step, [&](int64_t last) { return is_due(step, last); });
}

void Saver::save(const TrainPosition& position, Executor& executor) {
  look(executor, true);
  position_ = position;
  begin(position.step, executor);
  look(executor, true);
  if (!spec_.async) await_begun();
}

void Saver::save_last(const TrainPosition& position, Executor& executor) {
  position_ = position;
  at_end(position.step, executor);
}

/// A save that is due by step count, or at the end, begins before the validation of its state, which may fail; the
/// validation waits for the save before it. All ranks must agree without communication, so saves that are due by time
/// or by the validation itself begin after it.
void Saver::before_validation(int64_t step, bool is_end, Executor& executor) {
  if (step == first_step_) return;
  const int64_t last = board_.last_step();  // equal to `step` if another rank has decided
  const bool is_due_by_steps = saves_state_ && is_save_due(spec_, steps_per_epoch_, {.step = step, .last = last});
  if (!is_end && last != step && !is_due_by_steps) return;
  prepare(executor);
  look(executor, true);
  if (is_end)
    make_room_for(step);
  else if (begun_ != step)
    await_begun();
  // A disk that refuses the save before this one, or hangs, delays this one until after the validation. A rank that
  // decides otherwise waits for no other rank.
  if (const int64_t saving = board_.saving(); saving >= 0 && saving != step) return;
  if (board_.saves_before(step, [&](int64_t saved) { return saved != step; })) begin(step, executor);
  look(executor, true);
}

void Saver::before_step(int64_t step, Executor& executor) {
  if (!saves_state_) return;
  prepare(executor);  // the weights exist, and no step has started
  look(executor, false);
  if (step == first_step_) return;
  const bool has_begun = begun_ == step;  // it may have begun before the validation
  if (!has_begun && step == best_step_) await_previous(step, executor);
  if (!has_begun && board_.saves_before(step, [&](int64_t last) { return is_due(step, last); })) begin(step, executor);
  if (!spec_.async && copying_ < 0 && board_.is_reported(board_.saving())) await_begun();
}

/// Saves the last state too, unless it is the one that the run began with.
void Saver::at_end(int64_t step, Executor& executor) {
  if (step == first_step_) return;
  prepare(executor);
  look(executor, true);
  if (begun_ == step) return;  // it has begun before the validation
  if (!make_room_for(step)) return;
  if (board_.saves_before(step, [&](int64_t last) { return last != step; })) begin(step, executor);
  look(executor, true);
}

/// Waits for the save in progress before the last state is saved. Returns false if the writer hangs; only one call
/// waits for a writer that hangs.
bool Saver::make_room_for(int64_t last_step) {
  const auto is_other = [&](int64_t saving) { return saving != last_step; };
  board_.await_room(last_step);
  if (!waited_in_vain_) waited_in_vain_ = !await_writer(is_other);
  return board_.saving() < 0 || !is_other(board_.saving());
}

void Saver::on_validation(const ValidationReport& report) {
  validation_ = report;
  for (const auto& [metric, best] : report.best)
    if (metric == spec_.keep_best && best.step == report.run_step) best_step_ = report.run_step;
  if (reports_ && begun_ == report.run_step && position_.step == report.run_step)
    board_.report_validated(report.run_step, board_position(position_, validation_));
}

/// With several hosts, the first rank that saves requests a save when it is due, and the launcher chooses the step.
bool Saver::is_due(int64_t step, int64_t last) {
  if (step == best_step_) return true;
  const auto seconds_since = [](Clock::time_point t) {
    return std::chrono::duration<double>(Clock::now() - t).count();
  };
  SaveMoment now{.step = step, .last = last};
  const bool on_several_hosts = board_.is_decided_elsewhere();
  if (on_several_hosts && is_save_due(spec_, steps_per_epoch_, now)) return true;  // due by step count, as on all hosts
  if (on_several_hosts && (!reports_ || asks_)) return false;
  now.seconds = seconds_since(last_);
  now.cost = static_cast<double>(board_.cost_ns.load(std::memory_order_relaxed)) * 1e-9;
  now.run_seconds = seconds_since(start_);
  now.failures = failures_;
  const bool is_due = is_save_due(spec_, steps_per_epoch_, now);
  if (!is_due || !on_several_hosts) return is_due;
  asks_ = true;
  board_.ask();
  return false;
}

void Saver::begin(int64_t step, Executor& executor) {
  copying_ = step;
  asks_ = false;
  last_ = Clock::now();
  lost_seconds_ = 0;
  report_position();
  if (copy_too_) copy_too_(begun_ >= 0 && board_.written_step() == begun_);
  begun_ = step;
  executor.begin_copy();
  look(executor, !spec_.async || board_.steps_await_saves());
}

/// Checks whether the copy is complete, and if so allows the writer to read it.
void Saver::look(Executor& executor, bool wait) {
  if (copying_ < 0) return;
  const bool is_copied = executor.is_copied(wait);
  check(is_copied || !wait, "an executor that waits for the copy of the state has copied it");
  if (!is_copied) return;
  const uint64_t copied = static_cast<uint64_t>(copying_) + 1;
  status_.copied.store(copied, std::memory_order_release);
  for (int worker = 0; reports_ && worker < job_.plan.own_workers; ++worker)  // workers have nothing to copy
    shared_.status(worker).copied.store(copied, std::memory_order_release);
  copying_ = -1;
}

void Saver::on_step(const StepReport& report) {
  constexpr double kSmoothing = 0.1;
  if (!reports_) return;
  const bool awaits = board_.steps_await_saves() && board_.saving() == begun_ && begun_ >= 0;
  if (copying_ < 0 && !awaits) {
    usual_seconds_ += (report.seconds - usual_seconds_) * (usual_seconds_ == 0 ? 1 : kSmoothing);
    return;
  }
  const Clock::time_point before = Clock::now();
  if (awaits) await_begun();
  const double waited = std::chrono::duration<double>(Clock::now() - before).count();
  lost_seconds_ += std::max(0.0, report.seconds - usual_seconds_) + waited;
  board_.cost_ns.store(static_cast<uint64_t>(lost_seconds_ * 1e9), std::memory_order_relaxed);
}

void Saver::on_position(const TrainPosition& position) {
  position_ = position;
  report_position();
}

void Saver::report_position() {
  if (reports_ && board_.saving() == position_.step)
    board_.report_position(position_.step, board_position(position_, validation_));
}

/// Waits for the save before that of a best value, which would otherwise be left out while the other one is written. A
/// disk that refuses that save, or hangs, delays the training at most once.
void Saver::await_previous(int64_t step, Executor& executor) {
  if (refused_ == begun_ || board_.is_decided_elsewhere()) return;
  look(executor, true);
  if (!await_writer([step](int64_t saving) { return saving != step; }, true)) refused_ = begun_;
}

/// Waits for this rank's save; other ranks may already be at the next one. A disk that refuses the save, or hangs,
/// delays the training at most once: the writer retries in the meantime.
void Saver::await_begun() {
  if (refused_ == begun_) return;
  if (!await_writer([this](int64_t saving) { return saving == begun_; }, true)) refused_ = begun_;
}

/// Waits until no such save is in progress. Returns false if the writer hangs.
bool Saver::await_writer(const std::function<bool(int64_t step)>& is_awaited, bool ends_with_a_failed_try) {
  const uint64_t failed = board_.failed_tries();
  const auto is_busy = [&] {
    const int64_t saving = board_.saving();
    return saving >= 0 && is_awaited(saving);
  };
  if (!is_busy()) return true;
  uint64_t bytes = board_.written_bytes;
  Clock::time_point seen = Clock::now();
  status_.state = RankState::saving;
  while (is_busy()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    status_.looks.fetch_add(1, std::memory_order_relaxed);
    if (const uint64_t now = board_.written_bytes; now != bytes) {
      bytes = now;
      seen = Clock::now();
    }
    if (Clock::now() - seen > kPreviousSavePatience) break;
    if (ends_with_a_failed_try && board_.failed_tries() != failed) break;
  }
  status_.state = RankState::training;
  return !is_busy();
}

}  // namespace trainctl
