// The checkpoint of a job that is verified in one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/planning/planned_job.h"
#include "engine/runtime/executor.h"
#include "engine/train/checkpoint/state_image.h"

namespace trainctl {

/// The images that the ranks have copied before a step, as workers do it.
class SavedState {
 public:
  SavedState(int64_t step, size_t ranks) : step_(step), ranks_(ranks) {}

  /// Begins the copy of the rank's state before `step_`. Called on the rank's thread before each step.
  void look(const Program& program, int64_t step, Executor& executor);
  /// Writes the checkpoint once all ranks have copied their state. Returns the path of the published checkpoint.
  std::string write(const PlannedJob& job, const std::string& folder, const std::string& version);

 private:
  struct OfRank {
    std::optional<StateImage> image;
    std::vector<std::byte> bytes;
    bool begun = false;
  };
  const int64_t step_;
  std::vector<OfRank> ranks_;
};

}  // namespace trainctl
