// See the header.
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

AsyncRun run_async(PlannedJob planned, const AsyncOptions& options) {
  AsyncRun run;
  run.job = std::move(planned);
  run.programs = compile_all(run.job);
  const bool in_step = serves_tables_alone(run.job.plan);
  const int workers = num_workers(run.job.plan), servers = run.job.plan.servers;
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
  run.counts.resize(static_cast<size_t>(workers));
  run.results.resize(static_cast<size_t>(workers));

  std::mutex mutex;
  std::vector<std::exception_ptr> errors(run.programs.size());
  std::vector<std::unique_ptr<Communicator>> comms(run.programs.size());
  std::vector<std::unique_ptr<Trainer>> trainers(static_cast<size_t>(workers));  // of workers in step
  std::vector<std::unique_ptr<AsyncServer>> all_servers(static_cast<size_t>(servers));
  const auto work = [&](int rank) {
    const auto at = static_cast<size_t>(rank);
    bool is_killed = false;
    FunctionObserver seen;
    std::unique_ptr<AsyncWorker> worker;
    std::unique_ptr<Trainer>& trainer = trainers[at];
    seen.step = [&](const StepReport& report) {
      {
        const std::lock_guard lock(mutex);
        const auto [known, is_new] = run.losses.try_emplace(report.run_step - 1, report.loss);
        if (in_step && known->second != report.loss) throw std::runtime_error("workers in step have different losses");
        known->second = report.loss;
        run.workers[report.run_step - 1] = rank;
      }
      try {
        if (options.on_step) options.on_step(rank, report, trainer ? trainer->executor() : worker->executor());
      } catch (...) {
        is_killed = true;
        throw;
      }
    };
    seen.validation = [&](const ValidationReport& report) {
      if (!in_step || rank == 0) run.validations.push_back(report);
    };
    TrainOptions train;
    train.may_start = [&](int64_t step) { return run.memory->gate().start(static_cast<uint64_t>(step) + 1); };
    train.arena = run.memory->arena(rank);
    if (run.job.validation) train.validation = &validation[at];
    if (options.on_devices) train.device = stand_in_for_device;
    try {
      if (in_step) {
        servers::Client client(run.job, run.programs[at], train.validation, train.arena, *comms[at]);
        train.exchange = &client;
        trainer = std::make_unique<Trainer>(run.job, run.programs[at], *comms[at], seen.alone(), train);
        while (trainer->run_step()) {
        }
        client.leave();
        run.counts[at] = client.counts();
      } else {
        worker = std::make_unique<AsyncWorker>(run.job, run.programs[at], *run.memory, *comms[at], seen.alone(), train);
        run.results[at] = worker->run();
        run.counts[at] = worker->client().counts();
      }
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
    comms[static_cast<size_t>(rank)] =
        make_shared_memory_communicator(run.memory, rank, kTimeoutSeconds, in_step ? 0 : workers);
  for (int rank = 0; rank < workers + servers; ++rank)
    threads.emplace_back([&, rank] { rank < workers ? work(rank) : serve(rank); });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  for (const auto& server : all_servers) {
    int64_t& bytes = run.table_bytes.emplace_back(0);
    for (const auto& rows : server->tables()) bytes += rows->bytes();
  }
  std::vector<Program> held;
  std::vector<Executor*> executors;
  for (int worker = 0; in_step && worker < workers; ++worker) {
    held.push_back(run.programs[static_cast<size_t>(worker)]);
    executors.push_back(&trainers[static_cast<size_t>(worker)]->executor());
  }
  for (int server = 0; !in_step && server < servers; ++server) {
    held.push_back(run.programs[static_cast<size_t>(workers + server)]);
    executors.push_back(&all_servers[static_cast<size_t>(server)]->executor());
  }
  run.weights = gather_weights(held, executors);
  return run;
}

}  // namespace trainctl
