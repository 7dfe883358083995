// A copy of a rank's state in host memory, to which a run returns after a spike (train.on_spike: then: rollback).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/compile/program.h"
#include "engine/runtime/executor.h"

namespace trainctl {

class StateSnapshot {
 public:
  /// `program` must outlive it.
  explicit StateSnapshot(const Program& program);

  /// Copies the state before step `step`. All started steps must have finished.
  void take(int64_t step, Executor& executor);
  void put_back(Executor& executor) const;
  /// The step of the last take().
  int64_t step() const { return step_; }

 private:
  struct Range {
    int64_t offset = 0, bytes = 0;  ///< in the arena
  };

  std::vector<Range> ranges_;
  std::vector<std::byte> copy_;
  int64_t step_ = 0;
};

}  // namespace trainctl
