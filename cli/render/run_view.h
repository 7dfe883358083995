// What the user sees of a run: where it writes, the first rank's lines, progress, and a summary.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/render/progress.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/spec/job_spec.h"
#include "launcher/supervisor.h"

namespace trainctl {

class RunView {
 public:
  /// `spec` must outlive it.
  RunView(int fd, const JobSpec& spec) : fd_(fd), spec_(spec), progress_(fd) {}

  void begin(const RunDirectory& directory, int num_ranks);
  /// A line of the first rank.
  void line(std::string_view line);
  void notice(std::string_view message);
  void tick(const RankStatus& status);
  void end(const Outcome& outcome, const RunDirectory& directory);

 private:
  double seconds() const;
  std::string summary(const Outcome& outcome, const RunDirectory& directory) const;

  int fd_;
  const JobSpec& spec_;
  Progress progress_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<std::pair<std::string, std::string>> epochs_;  ///< number, mean loss
};

}  // namespace trainctl
