// The display of a run: its view on the terminal, launcher.log if it is detached, and its entry in the registry of
// runs.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/run/launch/background.h"
#include "cli/run/launch/launcher_log.h"
#include "cli/run/launch/run_observer.h"
#include "engine/spec/job_spec.h"
#include "launcher/registry.h"
#include "launcher/run_directory.h"

namespace trainctl {

struct RunDisplayOptions {
  std::vector<int> shown;            ///< the ranks whose output the user sees, ascending
  MakeObserver make_observer;        ///< makes the view
  Background* background = nullptr;  ///< null if not detached; must outlive the run
};

class RunDisplay {
 public:
  /// `directory` must outlive it. Throws EnvError.
  RunDisplay(const RunDirectory& directory, RunDisplayOptions options);

  RunObserver& view() { return *view_; }
  /// Shows the begin of the run and registers it. `processes`: number of ranks, servers included.
  void begin(const JobSpec& spec, const std::string& device, int processes);
  /// Shows a line of a rank if the user sees the rank's output. `is_program`: the ranks run the user's program.
  void line(int rank, std::string_view line, bool is_program);
  /// Returns whether the user's prompt waits for the start of a detached run.
  bool waits_for_start() const { return background_ != nullptr && background_->holds_on(); }
  /// Ends the user's command, so that the shell shows its prompt again; the run continues in the background.
  void let_go(const JobSpec& spec);
  /// Shows and publishes the status, as often as either is due.
  void update(const std::function<LiveStatus()>& status);
  /// Shows a failure at the end of the run.
  void failure(const std::string& text);
  /// Waits until launcher.log has all output, at most `seconds`.
  void flush(double seconds) const;

 private:
  using Clock = std::chrono::steady_clock;

  const RunDirectory& directory_;
  const std::vector<int> shown_;
  Background* const background_;
  const std::unique_ptr<LauncherLog> log_;  ///< null if not detached
  const std::unique_ptr<RunObserver> view_;
  std::optional<Registration> registration_;
  Clock::time_point published_;
};

}  // namespace trainctl
