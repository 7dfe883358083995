// The user's view of a run: its log folder, output of its ranks, progress, and a summary.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/render/progress.h"
#include "cli/run/launch/run_observer.h"
#include "launcher/live_status.h"
#include "launcher/run_directory.h"

namespace trainctl {

class RunView : public RunObserver {
 public:
  /// `fd`: where lines go; failures go to stderr.
  explicit RunView(int fd) : fd_(fd), progress_(fd) {}

  void begin(const std::string& name, const std::string& processes, const RunDirectory& directory,
             const std::string& device) override;
  /// Reads a line of rank 0, without printing it, for the means and validations of the summary. `is_shown`: the user
  /// sees the line anyway, see RunObserver. If not, a line saying that the loss is not finite is printed like a notice.
  void listen(std::string_view line, bool is_shown) override;
  void line(std::string_view line) override;               ///< prints a line of the only rank whose output is shown
  void line_of(int rank, std::string_view line) override;  ///< the same if several are shown: adds "rank 1 |"
  void notice(std::string_view message) override;          ///< prints a warning of the launcher, in yellow
  void news(std::string_view message) override;            ///< prints any other message of the launcher
  bool tick() override;
  void update(const LiveStatus& status) override;
  void end(const RunEnd& end, const RunDirectory& directory) override;
  void failure(std::string_view text) override;
  /// Ends the view without a summary; the run continues.
  void finish() { progress_.finish(); }

 private:
  double seconds() const;                               ///< since the view was made
  std::string shown(std::string_view line) const;       ///< a rank's line as printed: made safe for a terminal
  std::string means() const;                            ///< the table of epochs_ and validations_
  std::string training_means(const RunEnd& end) const;  ///< losses of the last epoch, for the last line
  void listen_to_validation(std::string_view line);     ///< listen(), for the text after "validation epoch "

  int fd_;
  Progress progress_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<std::vector<std::string>> epochs_;                 ///< number, mean loss, metrics
  std::vector<std::string> metrics_;                             ///< names of the metrics in epochs_
  std::vector<std::string> validated_;                           ///< names of the values of validations
  std::map<std::string, std::vector<std::string>> validations_;  ///< values of validated_, by number of the epoch
};

}  // namespace trainctl
