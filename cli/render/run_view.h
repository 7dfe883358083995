// The user's view of a run: its log folder, output of its ranks, progress, and a summary.
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

  /// `processes`: see processes_text (rank_names.h).
  void begin(const std::string& name, const std::string& processes, const RunDirectory& directory,
             const std::string& device = "");
  /// Receives a line of the first rank, from which the summary takes the epochs' means. If the rank is not shown, lines
  /// about the whole run become notices.
  void listen(std::string_view line, bool is_shown = true);
  /// Prints a line of the only shown rank.
  void line(std::string_view line);
  /// Prints a line of one of several shown ranks.
  void line_of(int rank, std::string_view line);
  void notice(std::string_view message);
  /// Prints a line of the launcher that is not a warning.
  void news(std::string_view message);
  /// Call it often: writes the pending lines. Returns whether `update` should be called too.
  bool tick();
  void update(const LiveStatus& status);
  void end(const RunEnd& end, const RunDirectory& directory);
  /// Ends the view without a summary; the run continues.
  void finish() { progress_.finish(); }

 private:
  double seconds() const;
  std::string shown(std::string_view line) const;
  std::string means() const;
  std::string last_metrics() const;

  int fd_;
  Progress progress_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<std::vector<std::string>> epochs_;  ///< number, mean loss, metrics
  std::vector<std::string> metrics_;              ///< their names
};

}  // namespace trainctl
