// Runs a parameter server: answers pulls, receives pushes, and runs its program once per complete push.
#include "engine/train/servers/server.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "engine/plan/served.h"
#include "engine/planning/compile_job.h"
#include "engine/train/checkpoint/finite_state.h"
#include "engine/train/data/order.h"
#include "engine/train/servers/row_window.h"
#include "engine/train/trainer/learning_rate.h"
#include "engine/train/trainer/trainer.h"

namespace trainctl {
namespace {

using servers::Ask;
using servers::Report;
using servers::Request;

constexpr int64_t kAlignment = 64;
/// Interval at which the loop checks for workers that have exited.
constexpr double kLookSeconds = 0.02;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Bytes of the messages of all instructions with `opcode`.
int64_t message_bytes(const Program& program, Opcode opcode) {
  int64_t bytes = 0;
  for (const Instruction& i : program.instructions)
    if (i.opcode == opcode) bytes += aligned(opcode == Opcode::send ? i.inputs[0].bytes() : i.outputs[0].bytes());
  return bytes;
}

/// Layout of the buffers of one worker:
///
///   rows of tables, or their gradients | weights, or gradients and norm | ids | ids of the next batch | its rows
///
/// At most one pull or push of a worker is in progress, and one prefetch of the rows of its next batch.
struct Room {
  Room(const PlannedJob& job, const Program& program) {
    for (const ServedTable& table : job.tables) rows += aligned(table.window * table.units * byte_size(DType::f32));
    ahead = rows;
    for (const std::vector<const ServedTable*>& tables : servers::tables_by_field(job.tables))
      ids += aligned(tables[0]->window * byte_size(DType::i32));
    messages = std::max(message_bytes(program, Opcode::send), message_bytes(program, Opcode::recv));
  }
  int64_t bytes() const { return rows + messages + 2 * ids + ahead; }

  int64_t rows = 0, messages = 0, ids = 0, ahead = 0;
};

}  // namespace

struct AsyncServer::Worker {
  enum class State { idle, lists, asks, pushes, left };

  int rank = 0;
  State state = State::idle;
  std::byte* rows = nullptr;      ///< rows of tables, one after another
  std::byte* messages = nullptr;  ///< pulled_ or pushed_
  int32_t* ids = nullptr;         ///< ids of fields, one after another; then those of the next batch
  std::byte* ahead = nullptr;     ///< rows of the next batch
  int lives = 0;                  ///< BatchBoard::lives of the worker process with which it communicates
  Request request;
  Report report;        ///< the end of its push
  size_t taken = 0;     ///< messages of ids, then of the push
  int64_t version = 0;  ///< version of the weights that it computes with
  int64_t lacks = 0;    ///< batches of steps before its own that these weights lack
};

int64_t server_arena_bytes(const PlannedJob& job, const Program& program) {
  return aligned(program.arena_bytes) + num_workers(job.plan) * Room(job, program).bytes();
}

void prepare_batches(const PlannedJob& job, int64_t first, SharedMemory& memory) {
  if (!serves_by_event(job.plan)) return;
  const int64_t steps = total_steps(job.spec.train, steps_per_epoch(job.spec.dataset, job.data.samples));
  const int64_t pushes = pushes_per_step(job.plan);
  const bool rebalance = job.plan.is_asynchronous() && job.spec.parallel.rebalance;
  memory.batches().prepare(num_workers(job.plan), first * pushes, steps * pushes, rebalance);
}

AsyncServer::AsyncServer(const PlannedJob& job, const Program& program, const SharedMemory& memory, Communicator& comm,
                         ServerObserver& observer, ServerSaves* saves, const ServerOptions& options)
    : job_(job),
      program_(program),
      optimizer_(job.spec.optimizer.type, job.spec.optimizer.attrs),
      memory_(memory),
      comm_(comm),
      observer_(observer),
      saves_(saves),
      start_up_(options.start_up),
      inbox_(comm),
      arena_(options.arena),
      applied_(memory.batches().first(), memory.batches().end()),
      pushes_per_step_(pushes_per_step(job.plan)),
      updates_(options.from.step * pushes_per_step_),
      decided_(options.from.step),
      metrics_(compile(job, 0).metrics),
      is_finite_(options.from.is_finite),
      validation_(options.from.validation),
      first_update_(updates_),
      run_steps_(memory.batches().end() / pushes_per_step_),
      steps_per_epoch_(steps_per_epoch(job.spec.dataset, job.data.samples)) {
  const int workers = num_workers(job.plan);
  check(static_cast<int64_t>(arena_.size()) >= server_arena_bytes(job, program),
        "the number of workers must not "
        "exceed the limit of a server");
  ExecutorOptions executor_options;
  executor_options.seed = job.spec.seed;
  executor_options.threads = options.threads;
  executor_options.start_up = &start_up_;
  executor_ = make_cpu_executor(program, inbox_, executor_options, arena_);
  if (options.restore) options.restore(*executor_);
  epochs_.emplace(options.from.step / steps_per_epoch_, EpochMeans(options.from.epoch, metrics_));
  lay_out(program);
  for (const ServedTable& table : job.tables) {
    tables_.push_back(std::make_unique<servers::TableRows>(table, job.spec.optimizer, job.spec.seed, options.threads,
                                                           row_life_of(job.spec, table)));
    if (options.restore_table) options.restore_table(*tables_.back());
  }
  for (const std::vector<const ServedTable*>& tables : servers::tables_by_field(job.tables)) {
    of_fields_.emplace_back();
    for (const ServedTable* table : tables) of_fields_.back().push_back(static_cast<size_t>(table - job.tables.data()));
  }
  const Room room(job, program);
  workers_.resize(static_cast<size_t>(workers));
  for (int w = 0; w < workers; ++w) {
    Worker& worker = workers_[static_cast<size_t>(w)];
    worker.rank = w;
    worker.rows = arena_.data() + aligned(program.arena_bytes) + w * room.bytes();
    worker.messages = worker.rows + room.rows;
    worker.ids = reinterpret_cast<int32_t*>(worker.messages + room.messages);
    worker.ahead = worker.messages + room.messages + 2 * room.ids;
  }
}

AsyncServer::~AsyncServer() = default;

void AsyncServer::lay_out(const Program& program) {
  int64_t sent = 0, received = 0;
  for (const Instruction& i : program.instructions) {
    if (i.opcode == Opcode::send) {
      pulled_.push_back({i.inputs[0].offset, sent, i.inputs[0].bytes()});
      sent += aligned(i.inputs[0].bytes());
    } else if (i.opcode == Opcode::recv) {
      pushed_.push_back({-1, received, i.outputs[0].bytes()});
      received += aligned(i.outputs[0].bytes());
    }
  }
}

void AsyncServer::run() {
  for (;;) {
    const uint32_t seen = comm_.mail();
    bool moved = false, all_left = true;
    for (int w = 0; w < static_cast<int>(workers_.size()); ++w) {
      Worker& worker = workers_[static_cast<size_t>(w)];
      if (worker.state == Worker::State::left && memory_.batches().lives(w) != worker.lives) let_go(worker);
      while (worker.state != Worker::State::left && serve(worker)) moved = true;
      all_left = all_left && worker.state == Worker::State::left;
    }
    if (all_left) break;
    join_save();
    if (moved || free_one()) continue;
    // A waiting worker does not count as stalled.
    memory_.status(comm_.rank()).looks.fetch_add(1, std::memory_order_relaxed);
    comm_.wait_for_mail(seen, kLookSeconds);
  }
  save_last();
}

/// Saves only in the first call.
void AsyncServer::save_last() {
  if (std::exchange(has_saved_last_, true)) return;
  if (updates_ > first_update_ && job_.spec.train.on_nan != OnNan::warn)
    require_finite_state(program_, *executor_, position().step);
  if (saves_ != nullptr && saved_step_ != position().step) saves_->save_last(position(), *executor_);
}

/// Workers in step may wait for a save before they ask for a batch.
void AsyncServer::join_save() {
  if (saves_ != nullptr && !job_.plan.is_asynchronous()) is_held(std::max(decided_, memory_.saves().saving()));
}

/// A worker that has exited may leave its batch to a worker that waits with a later one. If all remaining workers wait,
/// the lowest one continues. A save that they wait for is then made without that batch.
bool AsyncServer::free_one() {
  bool one_is_gone = false;
  Worker* lowest = nullptr;
  for (Worker& worker : workers_) {
    one_is_gone = one_is_gone || memory_.batches().is_gone(worker.rank);
    if (worker.state == Worker::State::left) continue;
    if (worker.state != Worker::State::asks) return false;
    if (worker.request.ask == Ask::train && (lowest == nullptr || worker.request.batch < lowest->request.batch))
      lowest = &worker;
  }
  if (!one_is_gone || lowest == nullptr) return false;
  if (saved_at_ >= 0 && step_of(lowest->request.batch) >= saved_at_) {
    TrainPosition at = position();
    at.step = saved_at_;
    saves_->save(at, *executor_);
    saved_at_ = -1;
    return true;
  }
  answer(*lowest);
  return true;
}

/// Handles the next message of the worker. Returns false if it has to wait.
bool AsyncServer::serve(Worker& worker) {
  switch (worker.state) {
    case Worker::State::idle:
      if (!comm_.has_message(worker.rank)) {
        if (!has_ended(worker)) return false;
        let_go(worker);
        return true;
      }
      comm_.recv(worker.rank, &worker.request, sizeof(worker.request));
      worker.taken = 0;
      worker.state = worker.request.ask == Ask::close              ? Worker::State::left
                     : worker.request.ask == Ask::wait_for_updates ? Worker::State::asks
                                                                   : Worker::State::lists;
      return true;
    case Worker::State::lists:
      if (worker.taken < 2 * of_fields_.size() && !has_ids(worker)) {
        if (!has_ended(worker)) return false;
        let_go(worker);
        return true;
      }
      if (worker.taken == 2 * of_fields_.size()) worker.state = Worker::State::asks;
      return true;
    case Worker::State::asks:
      if (has_ended(worker)) {
        let_go(worker);
        return true;
      }
      if (!may_start(worker.request)) return false;
      answer(worker);
      return true;
    case Worker::State::pushes:
      if (worker.taken < messages_of(worker) && !comm_.has_message(worker.rank)) {
        if (!has_ended(worker)) return false;
        let_go(worker);  // its pushes are dropped
        return true;
      }
      take_push(worker);
      return true;
    case Worker::State::left:
      break;
  }
  return false;
}

/// True if all its messages have been received and no more will come: it has closed the exchange, died, or been
/// replaced by another process.
bool AsyncServer::has_ended(const Worker& worker) const {
  const RankState state = memory_.status(worker.rank).state.load(std::memory_order_acquire);
  const bool ended =
      state == RankState::failed || state == RankState::done || memory_.batches().lives(worker.rank) != worker.lives;
  return ended && !comm_.has_message(worker.rank);
}

/// Ends the exchange with the worker, or begins one with the process that has replaced it.
void AsyncServer::let_go(Worker& worker) {
  worker.state = Worker::State::left;
  const int lives = memory_.batches().lives(worker.rank);
  if (lives == worker.lives) return;
  worker.lives = lives;
  worker.state = Worker::State::idle;
  memory_.batches().dropped(worker.rank);
}

bool AsyncServer::may_start(const Request& request) {
  if (request.ask == Ask::read || request.ask == Ask::wait_for_updates) {
    if (applied_.oldest() < request.batch) return false;
    save_before_validation();
    return true;
  }
  return !is_held(step_of(request.batch)) && is_near(request.batch);
}

bool AsyncServer::is_near(int64_t batch) const {
  if (applied_.is_complete()) return true;
  const BatchBoard& board = memory_.batches();
  return board.round(batch) - board.round(applied_.oldest()) <= job_.spec.parallel.staleness;
}

/// A validation that reads the weights may fail, so a state that is due to be saved is copied first.
void AsyncServer::save_before_validation() {
  if (!job_.plan.is_asynchronous()) return;  // the workers begin those saves
  if (applied_.is_complete())
    save_last();
  else
    is_held(step_of(applied_.oldest()));
}

/// A save of step s waits until all batches before s are applied, and those from s on wait for the save. A request
/// for a batch decides for all steps up to it, so no batch from s on has started.
bool AsyncServer::is_held(int64_t step) {
  while (saves_ != nullptr && decided_ < step && saved_at_ < 0)
    if (saves_->saves_before(++decided_)) saved_at_ = decided_;
  if (saved_at_ < 0 || step < saved_at_) return false;
  if (step_of(applied_.oldest()) < saved_at_) return true;
  saves_->save(position(), *executor_);
  saved_step_ = std::exchange(saved_at_, -1);
  return is_held(step);
}

TrainPosition AsyncServer::position() const {
  TrainPosition position;
  position.step = step_of(applied_.oldest());
  const auto epoch = epochs_.find(position.step / steps_per_epoch_);
  if (epoch != epochs_.end()) position.epoch = epoch->second.sums();
  position.is_finite = is_finite_;
  position.validation = validation_;
  return position;
}

/// Receives the ids of the next field, of the batch and then of the next batch. Returns false if they have not arrived.
/// A field without ids has no message.
bool AsyncServer::has_ids(Worker& worker) {
  const size_t fields = of_fields_.size();
  const auto ids_of = [&](size_t list) {
    return list < fields ? worker.request.ids[list] : worker.request.ahead[list - fields];
  };
  const int32_t count = ids_of(worker.taken);
  if (count > 0 && !comm_.has_message(worker.rank)) return false;
  int32_t* to = worker.ids;
  for (size_t list = 0; list < worker.taken; ++list) to += ids_of(list);
  if (count > 0) comm_.recv(worker.rank, to, count * byte_size(DType::i32));
  ++worker.taken;
  return true;
}

/// Answers a request with rows and copies of the weights, all from the same moment between two updates; later updates
/// do not change them.
void AsyncServer::answer(Worker& worker) {
  if (worker.request.ask == Ask::wait_for_updates) {
    const servers::UpdatesApplied applied;
    comm_.send(worker.rank, &applied, sizeof(applied));
    worker.state = Worker::State::idle;
    return;
  }
  answer_rows(worker);
  for (const Part& part : pulled_) {
    std::memcpy(worker.messages + part.at, arena_.data() + part.offset, static_cast<size_t>(part.bytes));
    comm_.send(worker.rank, worker.messages + part.at, part.bytes);
  }
  if (worker.request.next >= 0) answer_ahead(worker);
  worker.version = updates_;
  worker.lacks = applied_.missing_before(step_of(worker.request.batch) * pushes_per_step_);
  worker.taken = 0;
  worker.state = worker.request.ask == Ask::train ? Worker::State::pushes : Worker::State::idle;
}

/// Calls f(table, ids, rows, bytes) with the rows, or the gradients of rows, of the first `counts` ids of each field of
/// the worker's batch: by field, then by table.
template <class F>
void AsyncServer::for_each_table(const Worker& worker, const int32_t* counts, const F& f) const {
  std::byte* rows = worker.rows;
  const int32_t* ids = worker.ids;
  for (size_t field = 0; field < of_fields_.size(); ++field) {
    const std::span<const int32_t> of_field(ids, static_cast<size_t>(counts[field]));
    for (const size_t table : of_fields_[field]) {
      const int64_t bytes = counts[field] * job_.tables[table].units * byte_size(DType::f32);
      f(table, of_field, rows, bytes);
      rows += aligned(bytes);
    }
    ids += worker.request.ids[field];
  }
}

/// Sends the prefetched rows. The worker receives them only after its program has run, so they have their own buffer.
/// They need not wait for a save, because reading rows changes nothing.
void AsyncServer::answer_ahead(Worker& worker) {
  const servers::Ahead ahead{is_near(worker.request.next) ? 1 : 0};
  comm_.send(worker.rank, &ahead, sizeof(ahead));
  if (ahead.is_granted == 0) return;
  const int32_t* ids = worker.ids;
  for (size_t field = 0; field < of_fields_.size(); ++field) ids += worker.request.ids[field];
  std::byte* to = worker.ahead;
  for (size_t field = 0; field < of_fields_.size(); ++field) {
    const std::span<const int32_t> of_field(ids, static_cast<size_t>(worker.request.ahead[field]));
    for (const size_t table : of_fields_[field]) {
      tables_[table]->read(of_field, reinterpret_cast<float*>(to));
      to += static_cast<int64_t>(of_field.size()) * job_.tables[table].units * byte_size(DType::f32);
    }
    ids += of_field.size();
  }
  if (to > worker.ahead) comm_.send(worker.rank, worker.ahead, to - worker.ahead);
}

void AsyncServer::answer_rows(Worker& worker) {
  const auto send_rows = [&](size_t table, std::span<const int32_t> ids, std::byte* rows, int64_t bytes) {
    if (ids.empty()) return;
    tables_[table]->read(ids, reinterpret_cast<float*>(rows));
    comm_.send(worker.rank, rows, bytes);
  };
  for_each_table(worker, worker.request.asked, send_rows);
}

/// Returns the number of messages of the worker's push.
size_t AsyncServer::messages_of(const Worker& worker) const {
  size_t messages = pushed_.size() + 1;
  for (size_t field = 0; field < of_fields_.size(); ++field)
    if (worker.request.ids[field] > 0) messages += of_fields_[field].size();
  return messages;
}

/// Receives the next message of a push. A worker pushes only after it has pulled everything, so its buffers are free.
void AsyncServer::take_message(Worker& worker) {
  const size_t number = worker.taken++;
  if (number < pushed_.size()) {
    comm_.recv(worker.rank, worker.messages + pushed_[number].at, pushed_[number].bytes);
    return;
  }
  if (number + 1 == messages_of(worker)) return comm_.recv(worker.rank, &worker.report, sizeof(worker.report));
  size_t before = number - pushed_.size();
  const auto take = [&](size_t, std::span<const int32_t> ids, std::byte* rows, int64_t bytes) {
    if (!ids.empty() && before-- == 0) comm_.recv(worker.rank, rows, bytes);
  };
  for_each_table(worker, worker.request.ids, take);
}

void AsyncServer::take_push(Worker& worker) {
  if (worker.taken < messages_of(worker)) take_message(worker);
  if (worker.taken < messages_of(worker)) return;
  worker.state = Worker::State::idle;
  if (!applied_.add(worker.request.batch)) return;  // a worker that has died had pushed it
  apply(worker);
  if (job_.plan.is_asynchronous()) count(worker.report, worker.request.batch);  // else the workers have one loss
}

void AsyncServer::count(const Report& report, int64_t batch) {
  StepReport step;
  step.loss = report.loss;
  step.metrics.of = metrics_;
  for (size_t i = 0; i < metrics_.size(); ++i) step.metrics.values[i] = static_cast<double>(report.metrics[i]);
  is_finite_ = is_finite_ && std::isfinite(report.loss);
  epochs_.try_emplace(batch / steps_per_epoch_, EpochSums{}, metrics_).first->second.add(step);
  while (applied_.oldest() / steps_per_epoch_ > epochs_.begin()->first || applied_.is_complete()) {
    const auto& [epoch, means] = *epochs_.begin();
    EpochReport done{epoch + 1,
                     means.count(),
                     std::min((epoch + 1) * steps_per_epoch_, run_steps_),
                     job_.graph.has_loss(),
                     means.loss(),
                     0,
                     means.metrics()};
    observer_.on_epoch(done);
    epochs_.erase(epochs_.begin());
    if (epochs_.empty()) return;
  }
}

void AsyncServer::update_tables(const Worker& worker, const StepScalars& scalars) {
  // The norm is the last message of an asynchronous push.
  const float* norm = nullptr;
  if (job_.spec.optimizer.clip_norm > 0)
    norm = job_.plan.is_asynchronous() ? reinterpret_cast<const float*>(worker.messages + pushed_.back().at)
                                       : &worker.report.norm;
  const auto update = [&](size_t table, std::span<const int32_t> ids, const std::byte* gradients, int64_t) {
    tables_[table]->update(ids, reinterpret_cast<const float*>(gradients), norm, scalars);
  };
  for_each_table(worker, worker.request.ids, update);
}

/// Returns the number of updates that its weights lack. Updates of the same step do not count, because their gradients
/// are added up.
int64_t AsyncServer::staleness_of(const Worker& worker) const {
  check(updates_ >= worker.version, "versions must increase");
  return job_.plan.is_asynchronous() ? updates_ - worker.version : worker.lacks;
}

/// Scales the learning rate down by the staleness of the gradients, and runs the update.
void AsyncServer::apply(Worker& worker) {
  const int64_t staleness = staleness_of(worker), step = updates_ / pushes_per_step_;
  StepScalars scalars =
      step_scalars(job_.spec.optimizer.learning_rate, optimizer_, step, step / steps_per_epoch_, run_steps_);
  scalars.learning_rate /= std::sqrt(1 + static_cast<float>(staleness) / static_cast<float>(pushes_per_step_));
  inbox_.open(worker.messages);
  executor_->start_step(nullptr, scalars);
  executor_->finish_step();
  update_tables(worker, scalars);
  ++updates_;
  if (updates_ == first_update_ + 1) {
    start_up_.ended_together("step");
    start_up_.stop();
    observer_.on_first_update(start_up_);
  }
  memory_.batches().count_staleness(staleness);
  observer_.on_update(updates_, staleness);
}

}  // namespace trainctl
