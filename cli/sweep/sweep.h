// Runs the trials of a sweep, several at a time, and says how they did.
//
//   sweep_output/<job>/sweep.json      what was asked for: the same command resumes the sweep
//                      report.html     of the best trials
//                      trial.<N>/      its launch.log_dir: runs 1, 2, … ; output: what trainctl run printed
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/sweep/swept_field.h"
#include "engine/spec/job_spec.h"
#include "launcher/run_directory.h"
#include "launcher/spawn.h"

namespace trainctl {

struct Sweep {
  std::string job;     ///< the file
  std::string folder;  ///< absolute
  std::vector<TrialFields> trials;
  int at_once = 1;
  int ranks = 1;               ///< number of ranks per trial
  std::vector<int> gpus = {};  ///< GPUs that the trials share, as the driver numbers them; empty: they run on CPUs

  std::string log_dir(size_t trial) const { return folder + "/trial." + std::to_string(trial + 1); }
};

/// How far a trial is: its last run, if it has one.
enum class TrialState { open, running, done, failed };
TrialState state_of(const Sweep& sweep, size_t trial);

struct SweepEnd {
  int failed = 0;
  int signal = 0;  ///< the user's first signal: trials that had not ended are open again; 0: none
};

/// Runs all open trials. `say` gets a line when a trial starts and when it ends. SIGINT, SIGTERM and SIGHUP are passed on
/// to the running trials, which end in order; a second one kills them.
SweepEnd run_trials(const Sweep& sweep, const JobSpec& spec, ProcessRunner& runner,
                    const std::function<void(const std::string&)>& say);

}  // namespace trainctl
