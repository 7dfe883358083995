// Runs a job whose parameter servers are event loops: workers and servers as threads of one process.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/train/servers/server.h"
#include "engine/train/servers/worker.h"

namespace trainctl {

struct AsyncRun {
  PlannedJob job;
  std::vector<Program> programs;
  std::map<int64_t, float> losses;  ///< by batch, from 0; of workers in step by step, checked to agree
  std::map<int64_t, int> workers;   ///< which worker ran it; of workers in step the last
  /// Whole, after the last update: on the servers, or, of workers in step, on all workers, checked to agree.
  std::map<std::string, std::vector<float>> weights;
  std::vector<std::vector<int64_t>> staleness;  ///< by server, of each update
  std::vector<ValidationReport> validations;    ///< if the workers are in step, those of worker 0
  std::vector<servers::Client::Counts> counts;  ///< by worker
  std::vector<TrainResult> results;             ///< by worker; not of workers in step
  std::vector<int64_t> table_bytes;             ///< by server, of all tables
  std::shared_ptr<SharedMemory> memory;
};

struct AsyncOptions {
  /// On the worker's thread, after each of its batches; it may throw, which ends that worker as a dead one.
  std::function<void(int worker, const StepReport&, Executor&)> on_step{};
  /// Workers run on something that stands for a device: memory of its own, reached through their arenas.
  bool on_devices = false;
  /// On the server's thread, before it takes the next push.
  std::function<void(int server)> on_update{};
};

/// TrainOptions::device: a CPU with an arena that nothing else sees.
std::unique_ptr<Executor> stand_in_for_device(const Program& program, Communicator& comm,
                                              const ExecutorOptions& options);

/// Throws what a server threw, or a worker of which no on_step has thrown.
AsyncRun run_async(PlannedJob job, const AsyncOptions& options = {});

}  // namespace trainctl
