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
  std::map<int64_t, float> losses;  ///< loss of each batch, counted from 0. If workers run in step: loss of each step,
                                    ///< after a check that the workers agree
  std::map<int64_t, int> workers;   ///< worker that ran each batch. If workers run in step: the last worker that ran
                                    ///< the step
  /// The whole weights after the last update, from the servers. If workers run in step: from the workers, after a check
  /// that all have the same.
  std::map<std::string, std::vector<float>> weights;
  std::vector<std::vector<int64_t>> staleness;  ///< by server, of each update
  std::vector<ValidationReport> validations;    ///< if the workers are in step, those of worker 0
  std::vector<servers::Client::Counts> counts;  ///< by worker
  std::vector<TrainResult> results;             ///< by worker; not of workers in step
  std::vector<int64_t> table_bytes;             ///< by server, of all tables
  std::shared_ptr<SharedMemory> memory;
};

struct AsyncOptions {
  /// Called on the worker's thread after each of its batches. If it throws, that worker ends as a worker that has died.
  std::function<void(int worker, const StepReport&, Executor&)> on_step{};
  /// Workers run on a substitute for a device, whose memory only the worker's arena can reach.
  bool on_devices = false;
  /// Called on the server's thread before the server takes the next push.
  std::function<void(int server)> on_update{};
};

/// TrainOptions::device: a CPU with an arena that nothing else sees.
std::unique_ptr<Executor> stand_in_for_device(const Program& program, Communicator& comm,
                                              const ExecutorOptions& options);

/// Runs the job. Rethrows the error of a server, or the error of a worker, unless on_step itself has made that worker
/// throw.
AsyncRun run_async(PlannedJob job, const AsyncOptions& options = {});

}  // namespace trainctl
