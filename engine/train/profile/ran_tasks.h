// Finds when the tasks of the schedule ran in a profiled step.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/train/profile/step_profile.h"

namespace trainctl {

struct RanTask {
  std::string name;           ///< name in the drawing of `trainctl plan`: "F0", "B3", "W1", with chunks "F0.1"
  double begin = 0, end = 0;  ///< seconds since the first task of any rank began
};

struct RankTasks {
  int rank = 0, stage = 0;
  std::vector<RanTask> tasks;  ///< by begin. A task that another one interrupted is listed several times
};

/// Tasks of the last step that all profiles have. Only kernels count, so a task that waits has a gap before it or in
/// it. One profile for each stage that has any: that of its first rank.
std::vector<RankTasks> ran_tasks(std::span<const RankProfile> profiles);

}  // namespace trainctl
