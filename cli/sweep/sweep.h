// Runs the trials of a sweep, several at a time, and reports their results.
//
//   sweep_output/<job>/sweep.json      the request: the same command resumes the sweep
//                      report.html     report of the best trials
//                      trial.<N>/      its launch.log_dir: runs 1, 2, …; output: output of trainctl run
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/sweep/swept_field.h"
#include "engine/spec/job_spec.h"
#include "launcher/run_directory.h"
#include "launcher/spawn.h"

namespace trainctl {

/// Determines which trials end early (cli/sweep/halving.h).
struct Halving {
  int64_t first_step = 0;  ///< run step of the first rung
  int64_t factor = 4;      ///< between two rungs; one trial in `factor` passes each
  std::string by;  ///< "loss", "accuracy": of steps; "validation loss", "best validation accuracy": of validations
};

struct Sweep {
  std::string job;     ///< the file
  std::string folder;  ///< absolute
  std::vector<TrialFields> trials;
  int at_once = 1;
  int ranks = 1;               ///< number of ranks per trial
  std::vector<int> gpus = {};  ///< GPUs that the trials share, as the driver numbers them; empty: they run on CPUs
  std::optional<Halving> halving = {};

  std::string log_dir(size_t trial) const { return folder + "/trial." + std::to_string(trial + 1); }
};

/// State of a trial: that of its last run, if it has one, unless the sweep ended it early.
enum class TrialState { open, running, done, failed, ended_early };
TrialState state_of(const Sweep& sweep, size_t trial);

struct SweepEnd {
  int failed = 0;
  int signal = 0;  ///< the user's first signal, which reopens trials that had not ended; 0: none
};

/// Runs all open trials. `report` receives a line when a trial starts and when it ends. SIGINT, SIGTERM and SIGHUP are
/// passed to the running trials, which shut down cleanly; a second signal kills them.
SweepEnd run_trials(const Sweep& sweep, const JobSpec& spec, ProcessRunner& runner,
                    const std::function<void(const std::string&)>& report);

}  // namespace trainctl
