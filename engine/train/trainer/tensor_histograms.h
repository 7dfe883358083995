// train.histograms: how the weights and the gradients of a step are distributed. Each rank counts the elements that
// checkpoints take from it, so each element of a tensor counts once; the first rank adds up what all have.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/communicator.h"
#include "engine/train/files/histogram.h"
#include "engine/train/trainer/train_observer.h"

namespace trainctl {

/// "weights/fc1.weight", "gradients/fc1.weight": of what this rank's checkpoints would have. The gradients are those
/// that the last step's update read, before clip_norm. Waits for all started steps.
std::map<std::string, Histogram> own_histograms(const Program& program, Executor& executor);

/// Each rank sends its own to the first one.
std::vector<Route> routes_of_histograms(int processes);

class TensorHistograms : public StateObserver {
 public:
  /// `step`: number of the step in the run, from 1.
  using Sink = std::function<void(int64_t step, const std::map<std::string, Histogram>& histograms)>;

  /// `sink` is called on rank 0. All arguments must outlive it. `every`: steps between two histograms, at least 1.
  /// `first_step`: the step that the run begins with.
  TensorHistograms(const Program& program, Communicator& comm, int64_t every, int64_t first_step, Sink sink);
  TensorHistograms(const TensorHistograms&) = delete;
  TensorHistograms& operator=(const TensorHistograms&) = delete;

  void before_step(int64_t step, Executor& executor) override { after(step, executor); }
  void at_end(int64_t step, Executor& executor) override { after(step, executor); }

 private:
  void after(int64_t step, Executor& executor);

  const Program& program_;
  Communicator& comm_;
  const int64_t every_;
  const Sink sink_;
  int64_t last_;  ///< the step of the last ones, or the one that the run began with
};

}  // namespace trainctl
