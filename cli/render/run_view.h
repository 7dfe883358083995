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
  /// The summary takes the epochs' means from the line. If the rank is not shown, lines about the whole run become
  /// notices.
  void listen(std::string_view line, bool is_shown) override;
  void line(std::string_view line) override;
  void line_of(int rank, std::string_view line) override;
  void notice(std::string_view message) override;
  void news(std::string_view message) override;
  bool tick() override;
  void update(const LiveStatus& status) override;
  void end(const RunEnd& end, const RunDirectory& directory) override;
  void failure(std::string_view text) override;
  /// Ends the view without a summary; the run continues.
  void finish() { progress_.finish(); }

 private:
  double seconds() const;
  std::string shown(std::string_view line) const;
  std::string means() const;
  std::string training_means(const RunEnd& end) const;
  void listen_to_validation(std::string_view line);

  int fd_;
  Progress progress_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<std::vector<std::string>> epochs_;                 ///< number, mean loss, metrics
  std::vector<std::string> metrics_;                             ///< their names
  std::vector<std::string> validated_;                           ///< names of the values of validations
  std::map<std::string, std::vector<std::string>> validations_;  ///< their values, by number of the epoch
};

}  // namespace trainctl
