// Trains a planned job on CPUs with its ranks as threads of this process, and keeps everything that two plans of a job
// must agree on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/planning/planned_job.h"
#include "engine/runtime/executor.h"
#include "engine/train/checkpoint/train_position.h"
#include "engine/train/verification/recorded_communicator.h"

namespace trainctl {

/// Whole tensors by name: "fc1.weight", "fc1.weight:momentum".
using TensorValues = std::map<std::string, std::vector<float>>;

struct ThreadRunOptions {
  TrainPosition from{};
  /// On each rank's thread, before the first step: replaces the initial values.
  std::function<void(const Program&, Executor&)> restore{};
  /// On each rank's thread, before each step and after the last one. The arena has the state before step `step`.
  std::function<void(const Program&, int64_t step, Executor&)> at_step{};
  double timeout_seconds = 60;  ///< for a collective
  int threads = 1;              ///< threads of each rank's kernels
};

struct ThreadRun {
  std::vector<float> losses;                           ///< one per step
  std::map<std::string, std::vector<double>> metrics;  ///< metrics of labels: by name, one value per step
  TensorValues start;                                  ///< weights before the first step
  TensorValues first_gradients;     ///< gradients that the first update reads; without those that are not kept
  TensorValues end;                 ///< weights, optimizer states and running statistics after the last step
  std::vector<std::string> faults;  ///< replicas that differ, losses that differ between ranks, writes past an arena
  std::vector<std::vector<RecordedCall>> calls;  ///< by rank: those of the first step
  std::vector<bool> calls_repeat;                ///< by rank: every step has the calls of the first one
  std::vector<int64_t> arena_bytes;              ///< by rank: as registered
};

/// Runs `programs`, which are those of all ranks of `job`. Throws the first error of a rank, preferably its own rather
/// than one of a rank that waited for it.
ThreadRun run_on_threads(const PlannedJob& job, const std::vector<Program>& programs,
                         const ThreadRunOptions& options = {});

}  // namespace trainctl
