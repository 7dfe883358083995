// The load of the experts of each layer in a step, from the states that the ranks' programs keep
// (ops/moe/expert_load.h). Each rank sends the elements that checkpoints take from it; the first rank puts them
// together.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/planning/plan_job.h"
#include "engine/runtime/communicator.h"
#include "engine/train/trainer/train_observer.h"

namespace trainctl {

/// By layer: the state, which holds the sums of the last step.
using LoadsOfLayers = std::map<std::string, std::vector<float>>;

/// True if the training of this job reports loads: it has experts, and its workers train in step.
bool reports_expert_loads(const PlannedJob& job);
/// The elements of the loads that this rank would write to a checkpoint; the others are 0, so that the sum over all
/// ranks is the loads. Waits for all started steps.
LoadsOfLayers own_expert_loads(const Program& program, Executor& executor);

class ExpertLoads : public StateObserver {
 public:
  /// `step`: number of the step in the run, from 1.
  using Sink = std::function<void(int64_t step, const LoadsOfLayers& loads)>;

  /// `sink` is called on rank 0, after every `every` steps and at the end. All arguments must outlive it.
  /// `workers`: ranks 0 to workers - 1 report; parameter servers follow them and have no loads. `first_step`: the step
  /// that the run begins with.
  ExpertLoads(const Program& program, Communicator& comm, int workers, int64_t every, int64_t first_step, Sink sink);
  ExpertLoads(const ExpertLoads&) = delete;
  ExpertLoads& operator=(const ExpertLoads&) = delete;

  void before_step(int64_t step, Executor& executor) override {
    if (step % every_ == 0) report(step, executor);
  }
  void at_end(int64_t step, Executor& executor) override { report(step, executor); }

 private:
  void report(int64_t step, Executor& executor);

  const Program& program_;
  Communicator& comm_;
  const int workers_;
  const int64_t every_;
  const Sink sink_;
  int64_t last_;  ///< the step of the last report, or the one that the run began with
};

}  // namespace trainctl
