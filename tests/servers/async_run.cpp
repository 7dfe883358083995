// See the header.
#include "tests/servers/async_run.h"

#include <exception>
#include <mutex>
#include <thread>

#include "engine/runtime/comm/shared_memory_communicator.h"
#include "tests/equivalence/harness.h"

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

AsyncRun run_async(PlannedJob planned, const AsyncOptions& options) {
  AsyncRun run;
  run.job = std::move(planned);
  run.programs = compile_all(run.job);
  const int workers = run.job.plan.own_workers, servers = run.job.plan.servers;
  std::vector<Program> validation;
  std::vector<int64_t> arena_bytes;
  for (const Program& program : run.programs) {
    if (run.job.validation) validation.push_back(compile_validation(run.job, program.rank));
    int64_t bytes = program.server >= 0 ? server_arena_bytes(run.job, program) : program.arena_bytes;
    if (run.job.validation && program.server < 0) bytes = std::max(bytes, validation.back().arena_bytes);
    arena_bytes.push_back(bytes);
  }
  run.memory = SharedMemory::create(arena_bytes, routes_between(workers, servers));
  prepare_batches(run.job, 0, *run.memory);
  run.staleness.resize(static_cast<size_t>(servers));

  std::mutex mutex;
  std::vector<std::exception_ptr> errors(run.programs.size());
  std::vector<std::unique_ptr<Communicator>> comms(run.programs.size());
  std::vector<std::unique_ptr<AsyncServer>> all_servers(static_cast<size_t>(servers));
  const auto work = [&](int rank) {
    const auto at = static_cast<size_t>(rank);
    bool is_killed = false;
    TrainHooks hooks;
    std::unique_ptr<AsyncWorker> worker;
    hooks.on_step = [&](const StepReport& report) {
      {
        const std::lock_guard lock(mutex);
        run.losses[report.run_step - 1] = report.loss;
        run.workers[report.run_step - 1] = rank;
      }
      try {
        if (options.on_step) options.on_step(rank, report, worker->executor());
      } catch (...) {
        is_killed = true;
        throw;
      }
    };
    hooks.on_validation = [&](const ValidationReport& report) { run.validations.push_back(report); };
    TrainOptions train;
    train.arena = run.memory->arena(rank);
    if (run.job.validation) train.validation = &validation[at];
    try {
      worker = std::make_unique<AsyncWorker>(run.job, run.programs[at], *run.memory, *comms[at], hooks, train);
      worker->run();
      run.memory->status(rank).state = RankState::done;
    } catch (...) {
      if (!is_killed) errors[at] = std::current_exception();
      run.memory->status(rank).state = RankState::failed;
      run.memory->batches().set_gone(rank);
    }
  };
  const auto serve = [&](int rank) {
    const auto at = static_cast<size_t>(rank), server = static_cast<size_t>(rank - workers);
    ServerHooks hooks;
    hooks.on_update = [&, server](int64_t, int64_t staleness) {
      run.staleness[server].push_back(staleness);
      if (options.on_update) options.on_update(static_cast<int>(server));
    };
    ServerOptions serving;
    serving.arena = run.memory->arena(rank);
    try {
      all_servers[server] =
          std::make_unique<AsyncServer>(run.job, run.programs[at], *run.memory, *comms[at], hooks, serving);
      all_servers[server]->run();
    } catch (...) {
      errors[at] = std::current_exception();
      run.memory->status(rank).state = RankState::failed;
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < workers + servers; ++rank)
    comms[static_cast<size_t>(rank)] = make_shared_memory_communicator(run.memory, rank, kTimeoutSeconds, workers);
  for (int rank = 0; rank < workers + servers; ++rank)
    threads.emplace_back([&, rank] { rank < workers ? work(rank) : serve(rank); });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  std::vector<Program> held;
  std::vector<Executor*> executors;
  for (int server = 0; server < servers; ++server) {
    held.push_back(run.programs[static_cast<size_t>(workers + server)]);
    executors.push_back(&all_servers[static_cast<size_t>(server)]->executor());
  }
  run.weights = gather_weights(held, executors);
  return run;
}

}  // namespace trainctl
