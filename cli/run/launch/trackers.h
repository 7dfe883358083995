// The processes that give the numbers of a run to the trackers of `track`, one per tracker: `python3 -m trainctl.track`
// follows metrics.jsonl from the first step until outcome.json is written. A tracker never changes how a run ends.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/spec/job_spec.h"
#include "launcher/run_directory.h"

namespace trainctl {

/// The trackers of the job that need a process and can start on this host: tensorboard needs none, because every run
/// writes event files. SpecError at each tracker that cannot start; a warning instead if it is not required.
std::vector<TrackerSpec> startable_trackers(const JobSpec& spec, std::vector<Diagnostic>& warnings);

class TrackerProcesses {
 public:
  /// `trackers`: of startable_trackers() for the job.
  TrackerProcesses(const JobSpec& spec, std::vector<TrackerSpec> trackers);
  TrackerProcesses(const TrackerProcesses&) = delete;
  TrackerProcesses& operator=(const TrackerProcesses&) = delete;
  /// Kills those that still run.
  ~TrackerProcesses();

  /// Starts them, once. Their output goes to track.<name>.log in the run's folder.
  void start(const RunDirectory& directory);
  /// Returns a line for each tracker that has ended since the last call, about its failure or the place of the numbers.
  std::vector<std::string> news();
  /// Once outcome.json is written: waits for their end, at most kPatienceSeconds or until `is_hurried`, and kills those
  /// that still run. `notice` gets a line if they take longer than a moment. Returns lines as news() does.
  std::vector<std::string> finish(const std::function<bool()>& is_hurried,
                                  const std::function<void(const std::string&)>& notice);

  static constexpr double kPatienceSeconds = 60;

 private:
  struct Process {
    TrackerSpec spec;
    std::string name;  ///< "mlflow", or "mlflow.2" for the second of that type
    std::string log;
    pid_t pid = -1;  ///< -1: it does not run
  };

  void start_one(Process& process, const RunDirectory& directory);
  std::string end_of(const Process& process, int status) const;
  std::vector<std::string> names_of_running() const;

  std::string folder_;  ///< folder of the job file: the working directory of the trackers
  std::string run_folder_;
  std::vector<Process> processes_;
  bool is_started_ = false;
};

}  // namespace trainctl
