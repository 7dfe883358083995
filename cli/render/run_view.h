// What the user sees of a run: where it writes, its ranks' lines, progress, and a summary.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/render/progress.h"
#include "cli/render/run_end.h"
#include "launcher/live_status.h"
#include "launcher/run_directory.h"

namespace trainctl {

class RunView {
 public:
  explicit RunView(int fd) : fd_(fd), progress_(fd) {}

  void begin(const std::string& name, int num_ranks, const RunDirectory& directory, const std::string& device = "");
  /// A line of the first rank, shown or not: the summary has its mean losses.
  void listen(std::string_view line);
  /// A line of the only rank that is shown.
  void line(std::string_view line);
  /// A line of one of several.
  void line_of(int rank, std::string_view line);
  void notice(std::string_view message);
  /// A line of the launcher's that is no warning.
  void news(std::string_view message);
  /// To be called often: writes the lines that have come. Whether `update` should be called too.
  bool tick();
  void update(const LiveStatus& status);
  void end(const RunEnd& end, const RunDirectory& directory);
  /// Without a summary: we stop looking, the run does not stop.
  void finish() { progress_.finish(); }

 private:
  double seconds() const;
  std::string losses() const;

  int fd_;
  Progress progress_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<std::pair<std::string, std::string>> epochs_;  ///< number, mean loss
};

}  // namespace trainctl
