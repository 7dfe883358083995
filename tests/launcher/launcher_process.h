// A launcher in a process of its own, running shell scripts as ranks, for tests that hurt it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/binding.h"

struct LauncherOptions {
  double grace_seconds = 10;
  double timeout_seconds = 60;
  int max_restarts = 0;
  bool progress = false;  ///< a rank's position is the size of `log_dir`/progress.<RANK>
  bool gate = false;      ///< ranks are asked to end by `log_dir`/stop, and say their last step in `log_dir`/stopped
  std::vector<trainctl::RankBinding> bindings = {};
};

/// Forks; the child supervises one `sh -c script` a rank (RANK, DIR and ATTEMPT in its environment) and exits as
/// trainctl run would. It writes the failure report to `log_dir`/report, outcome.json to `log_dir`/outcome, and
/// notices, a line each, to `log_dir`/notices. Returns the launcher's pid.
int start_launcher(const std::string& log_dir, const std::vector<std::string>& scripts,
                   const LauncherOptions& options = {});

/// The exit status of a pid, 128 + signal where one killed it.
int wait_for(int pid);

/// Whether a process exists and is no zombie.
bool alive(int pid);

/// Waits, at most some 20 seconds, until it holds; the last answer.
bool eventually(const std::function<bool()>& holds);

/// A file's text; "" where there is none, as of a process that has gone, be it while its /proc is read.
std::string slurp(const std::string& path);

/// The number that a script wrote to a file (with `echo $$ > file`), waiting for it.
int pid_in(const std::string& path);
