// Runs a job on all its ranks as threads of one process and keeps all results that can be compared.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/planning/planned_job.h"
#include "engine/runtime/communicator.h"
#include "engine/runtime/executor.h"
#include "engine/train/trainer/trainer.h"

namespace trainctl {

/// Fields that replace those of a job file, as on the command line: "launch.ranks=4".
using Overrides = std::vector<std::string>;

/// The fields of both lists; where both set one, `b` wins.
inline Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct RunResult {
  PlannedJob job;
  std::vector<Program> programs;
  std::vector<float> losses;                           ///< one per step; checked to be the same on all ranks
  std::map<std::string, std::vector<double>> metrics;  ///< by name, one per step; checked like the losses
  std::map<std::string, std::vector<float>> weights;   ///< after the last step, whole; replicas checked to agree
  std::vector<ValidationReport> validations;           ///< checked like the losses
  std::vector<std::vector<std::string>> calls;         ///< per rank: communications of the first step
  std::vector<int> calls_per_step;                     ///< per rank; -1: steps differ
  std::vector<int64_t> arena_bytes;                    ///< per rank: as registered
  std::map<int, std::vector<std::string>> printed;     ///< per rank: "name [values]"
};

/// Tells where the ranks run: on CPUs, or rank r on GPU r.
struct RunOn {
  bool cuda = false;
  bool graph = true;                            ///< CUDA only: the step as one graph
  std::vector<std::string>* notices = nullptr;  ///< notices of CUDA executors; null: none is expected, so they throw
  TrainPosition from{};                         ///< with `restore`: resumes
  std::function<void(const Program&, Executor&)> restore{};
  /// On each rank's thread, before each step and after the last one.
  std::function<void(const Program&, int64_t step, Executor&)> at_step{};
  std::function<void(const Program&, const TrainPosition&)> reported{};
};

/// Plans, compiles, verifies and trains a job of tests/jobs. Throws what any rank threw.
RunResult run_job(const std::string& name, const std::vector<std::string>& overrides, const RunOn& on = {});

/// The same for a job that is already planned.
RunResult run_job(PlannedJob job, const RunOn& on = {});

/// Runs `body` once per rank, each on its own thread, with a communicator over shared memory and the rank's arena in
/// it, which lives until `after` has run. Throws the first error, preferably a rank's own rather than one of a rank
/// that waited for it.
/// `beside`: programs that share the arenas, with routes of their own.
using RankBody = std::function<void(int rank, std::unique_ptr<Communicator> comm, std::span<std::byte> arena)>;
void run_ranks(const std::vector<Program>& programs, const RankBody& body, const std::function<void()>& after = {},
               const std::vector<Program>& beside = {});

/// All variables whole, from each rank's arena (read through its program).
std::map<std::string, std::vector<float>> gather_weights(const std::vector<Program>& programs,
                                                         const std::vector<Executor*>& executors);

}  // namespace trainctl
