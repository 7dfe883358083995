// train.fingerprints: fingerprints of weights, gradients, optimizer states and running statistics. Each rank adds the
// elements that checkpoints take from it, so each element of a tensor counts once; the first rank adds up what all
// have.
#pragma once

#include <functional>

#include "engine/runtime/communicator.h"
#include "engine/train/files/fingerprint.h"
#include "engine/train/trainer/train_observer.h"

namespace trainctl {

/// "weight/fc1.weight", "gradient/fc1.weight", "exp_avg/fc1.weight", "state/bn.mean": of this rank's own elements. The
/// gradients are those that the last step's update read, before clip_norm. Waits for all started steps.
Fingerprints own_fingerprints(const Program& program, Executor& executor);

class TensorFingerprints : public StateObserver {
 public:
  using Sink = std::function<void(int64_t step, const Fingerprints& fingerprints)>;

  /// `sink` is called on rank 0 with the number of steps that have been done. All arguments must outlive it. `every`:
  /// steps between two fingerprints, at least 1. `first_step`: the step that the run begins with.
  TensorFingerprints(const Program& program, Communicator& comm, int64_t every, int64_t first_step, Sink sink);
  TensorFingerprints(const TensorFingerprints&) = delete;
  TensorFingerprints& operator=(const TensorFingerprints&) = delete;

  void before_step(int64_t step, Executor& executor) override { look(step, executor, false); }
  void at_end(int64_t step, Executor& executor) override { look(step, executor, true); }

 private:
  void look(int64_t step, Executor& executor, bool is_end);

  const Program& program_;
  Communicator& comm_;
  const int64_t every_;
  const Sink sink_;
  int64_t last_ = -1;  ///< the step of the last ones
  const int64_t first_;
};

}  // namespace trainctl
