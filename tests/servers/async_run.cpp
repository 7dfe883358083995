// Runs a job with asynchronous parameter servers: workers and servers are threads of one process.
#include "tests/servers/async_run.h"

#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "engine/plan/served.h"
#include "engine/planning/compile_job.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/train/servers/client.h"
#include "tests/equivalence/harness.h"
#include "tests/train/function_observer.h"

namespace trainctl {
namespace {

constexpr double kTimeoutSeconds = 30;

std::vector<Route> routes_between(int workers, int servers) {
  std::vector<Route> routes;
  for (int worker = 0; worker < workers; ++worker) {
    for (int server = workers; server < workers + servers; ++server) {
      routes.push_back({worker, server});
      routes.push_back({server, worker});
    }
  }
  return routes;
}

}  // namespace

std::unique_ptr<Executor> stand_in_for_device(const Program& program, Communicator& comm,
                                              const ExecutorOptions& options) {
  return make_cpu_executor(program, comm, options);
}

namespace {

/// The ranks of one run as threads, and what they share.
class AsyncRunner {
 public:
  AsyncRunner(PlannedJob planned, const AsyncOptions& options);
  AsyncRun run();

 private:
  struct UpdateObserver : ServerObserver {
    void on_update(int64_t updates, int64_t staleness) override;
    AsyncRunner* runner = nullptr;
    size_t server = 0;
  };

  void make_memory();
  void seen_step(int worker, const StepReport& report);
  TrainOptions train_options(int rank) const;
  void train_in_step(int rank, TrainOptions train, FunctionObserver& seen);
  void work(int rank);
  void serve(int rank);
  void gather_results();
  Program& program_of(int rank) { return run_.programs[static_cast<size_t>(rank)]; }

  const AsyncOptions& options_;
  AsyncRun run_;
  const bool in_step_;
  const int workers_, servers_;
  std::vector<Program> validation_;
  std::mutex mutex_;
  std::vector<std::exception_ptr> errors_;
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::vector<std::unique_ptr<Trainer>> trainers_;  ///< if workers run in step
  std::vector<UpdateObserver> observers_;
  std::vector<std::unique_ptr<AsyncServer>> all_servers_;
};

AsyncRunner::AsyncRunner(PlannedJob planned, const AsyncOptions& options)
    : options_(options),
      run_{.job = std::move(planned)},
      in_step_(serves_tables_alone(run_.job.plan)),
      workers_(num_workers(run_.job.plan)),
      servers_(run_.job.plan.servers),
      errors_(static_cast<size_t>(workers_ + servers_)),
      trainers_(static_cast<size_t>(workers_)),
      observers_(static_cast<size_t>(servers_)),
      all_servers_(static_cast<size_t>(servers_)) {
  run_.programs = compile_all(run_.job);
  run_.staleness.resize(static_cast<size_t>(servers_));
  run_.counts.resize(static_cast<size_t>(workers_));
  run_.results.resize(static_cast<size_t>(workers_));
}

void AsyncRunner::UpdateObserver::on_update(int64_t, int64_t staleness) {
  runner->run_.staleness[server].push_back(staleness);
  if (runner->options_.on_update) runner->options_.on_update(static_cast<int>(server));
}

void AsyncRunner::make_memory() {
  std::vector<int64_t> arena_bytes;
  for (const Program& program : run_.programs) {
    if (run_.job.validation) validation_.push_back(compile_validation(run_.job, program.rank));
    int64_t bytes = program.server >= 0 ? server_arena_bytes(run_.job, program) : program.arena_bytes;
    if (run_.job.validation && program.server < 0) bytes = std::max(bytes, validation_.back().arena_bytes);
    arena_bytes.push_back(bytes);
  }
  run_.memory = SharedMemory::create(arena_bytes, routes_between(workers_, servers_));
  prepare_batches(run_.job, 0, *run_.memory);
}

void AsyncRunner::seen_step(int worker, const StepReport& report) {
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = run_.losses.try_emplace(report.run_step - 1, report.loss);
  if (in_step_ && known->second != report.loss) throw std::runtime_error("workers in step have different losses");
  known->second = report.loss;
  run_.workers[report.run_step - 1] = worker;
}

TrainOptions AsyncRunner::train_options(int rank) const {
  TrainOptions train;
  train.may_start = [memory = run_.memory](int64_t step) {
    return memory->gate().start(static_cast<uint64_t>(step) + 1);
  };
  train.arena = run_.memory->arena(rank);
  if (run_.job.validation) train.validation = &validation_[static_cast<size_t>(rank)];
  if (options_.on_devices) train.device = stand_in_for_device;
  return train;
}

void AsyncRunner::train_in_step(int rank, TrainOptions train, FunctionObserver& seen) {
  const auto at = static_cast<size_t>(rank);
  servers::Client client(run_.job, program_of(rank), train.validation, train.arena, *comms_[at]);
  train.exchange = &client;
  trainers_[at] = std::make_unique<Trainer>(run_.job, program_of(rank), *comms_[at], seen.alone(), train);
  while (trainers_[at]->run_step()) {
  }
  client.close();
  run_.counts[at] = client.counts();
}

void AsyncRunner::work(int rank) {
  const auto at = static_cast<size_t>(rank);
  bool is_killed = false;
  FunctionObserver seen;
  std::unique_ptr<AsyncWorker> worker;
  seen.step = [&](const StepReport& report) {
    seen_step(rank, report);
    try {
      if (options_.on_step)
        options_.on_step(rank, report, trainers_[at] ? trainers_[at]->executor() : worker->executor());
    } catch (...) {
      is_killed = true;
      throw;
    }
  };
  seen.validation = [&](const ValidationReport& report) {
    if (!in_step_ || rank == 0) run_.validations.push_back(report);
  };
  const TrainOptions train = train_options(rank);
  try {
    if (in_step_) {
      train_in_step(rank, train, seen);
    } else {
      worker =
          std::make_unique<AsyncWorker>(run_.job, program_of(rank), *run_.memory, *comms_[at], seen.alone(), train);
      run_.results[at] = worker->run();
      run_.counts[at] = worker->client().counts();
    }
    run_.memory->status(rank).state = RankState::done;
  } catch (...) {
    if (!is_killed) errors_[at] = std::current_exception();
    run_.memory->status(rank).state = RankState::failed;
    run_.memory->batches().set_gone(rank);
  }
}

void AsyncRunner::serve(int rank) {
  const auto at = static_cast<size_t>(rank), server = static_cast<size_t>(rank - workers_);
  observers_[server].runner = this;
  observers_[server].server = server;
  ServerOptions serving;
  serving.arena = run_.memory->arena(rank);
  try {
    all_servers_[server] = std::make_unique<AsyncServer>(run_.job, program_of(rank), *run_.memory, *comms_[at],
                                                         observers_[server], nullptr, serving);
    all_servers_[server]->run();
  } catch (...) {
    errors_[at] = std::current_exception();
    run_.memory->status(rank).state = RankState::failed;
  }
}

void AsyncRunner::gather_results() {
  for (const auto& server : all_servers_) {
    int64_t& bytes = run_.table_bytes.emplace_back(0);
    for (const auto& rows : server->tables()) bytes += rows->bytes();
  }
  std::vector<Program> programs;
  std::vector<Executor*> executors;
  for (int worker = 0; in_step_ && worker < workers_; ++worker) {
    programs.push_back(program_of(worker));
    executors.push_back(&trainers_[static_cast<size_t>(worker)]->executor());
  }
  for (int server = 0; !in_step_ && server < servers_; ++server) {
    programs.push_back(program_of(workers_ + server));
    executors.push_back(&all_servers_[static_cast<size_t>(server)]->executor());
  }
  run_.weights = gather_weights(programs, executors);
}

AsyncRun AsyncRunner::run() {
  make_memory();
  for (int rank = 0; rank < workers_ + servers_; ++rank)
    comms_.push_back(make_shared_memory_communicator(run_.memory, rank, kTimeoutSeconds, in_step_ ? 0 : workers_));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < workers_ + servers_; ++rank)
    threads.emplace_back([this, rank] { rank < workers_ ? work(rank) : serve(rank); });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors_)
    if (error) std::rethrow_exception(error);
  gather_results();
  return std::move(run_);
}

}  // namespace

AsyncRun run_async(PlannedJob planned, const AsyncOptions& options) {
  return AsyncRunner(std::move(planned), options).run();
}

}  // namespace trainctl
