// The jobs that this user has submitted to Slurm with trainctl, as ps and stop see them from a login node.
//
//   $XDG_STATE_HOME/trainctl/slurm/     or ~/.local/state/trainctl/slurm/
//     <job>.json                        written when it is submitted; deleted when Slurm no longer knows the job
#pragma once

#include <string>
#include <vector>

namespace trainctl::clusters {

/// The words of the command, also for --dry-run.
std::vector<std::string> submit_words(const std::string& script);

/// Returns the job's number. Throws EnvError with the output of sbatch.
std::string submit(const std::string& script);

struct SubmittedJob {
  std::string id;  ///< "12"; in an array "12_0", and "12_[1-3]" for pending jobs
  std::string name;
  std::string log_dir;          ///< absolute
  double submitted = 0;         ///< unix seconds
  std::string state;            ///< printed by squeue: "PENDING"
  std::string reason;           ///< reason for waiting; else the nodes
  std::string time, time_left;  ///< "1:02:03"
};

/// Records the job for submitted_jobs(). Throws EnvError.
void remember(const SubmittedJob& job);

/// The submitted jobs that Slurm still knows, oldest first. Without Slurm, or if it does not respond: none, and
/// `notice` reports it if there should be some.
std::vector<SubmittedJob> submitted_jobs(std::string& notice);

/// Asks the launcher of a running job to stop, which saves as after Ctrl-C; a job that waits is cancelled. `now`:
/// everything is ended at once. Throws EnvError.
void stop_job(const SubmittedJob& job, bool now);

}  // namespace trainctl::clusters
